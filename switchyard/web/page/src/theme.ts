// Light or dark as the Airflow UI around this page is; alone, as the browser prefers.
export function followTheme(changed: () => void): void {
  const outer = outerRoot();
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const said = outer ? `${outer.className} ${outer.dataset.theme ?? ""} ${outer.style.colorScheme}` : "";
    const theme = /\bdark\b/.test(said) ? "dark" : /\blight\b/.test(said) ? "light" : dark.matches ? "dark" : "light";
    if (document.documentElement.dataset.theme === theme) return;
    document.documentElement.dataset.theme = theme;
    document.body.dataset.agThemeMode = theme;
    changed();
  };
  if (outer) new MutationObserver(apply).observe(outer, { attributes: true });
  dark.addEventListener("change", apply);
  apply();
}

function outerRoot(): HTMLElement | null {
  try {
    return window.parent === window ? null : window.parent.document.documentElement;
  } catch {
    return null;
  }
}

// Airflow shows this page in a sandbox that must not navigate its parent; a link of the parent may.
export function openInAirflow(path: string): void {
  const outer = outerRoot();
  const owner = outer?.ownerDocument ?? document;
  const link = owner.createElement("a");
  link.href = path;
  owner.body.append(link);
  link.click();
  link.remove();
}

export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
