"""
# Back to the previous generation

**What it does.** Asks for the generation that was active before the active one. While that one still lingers, or is
kept, it takes over at once; later it is resumed from its checkpoint, reads what it has missed, and then takes over. A
swap that is under way is superseded. A second rollback takes the first one back.

**When it runs.** Only when it is triggered by hand. `switchyard rollback` does the same.

**Is it safe to run again?** Clearing its task changes nothing: the same run is the same command. A new run is a new
rollback, and goes the other way.

**When it fails.** The log says why in one sentence: there is no previous generation, or its checkpoint was removed. To
go to topics that were read before, send a control message with `start` set to `resume`.
"""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import Param, dag

from switchyard.airflow.control_operators import RollbackOperator
from switchyard.airflow.defaults import dag_arguments

PARAMS = {
    "reason": Param(
        "",
        type=["string", "null"],
        maxLength=500,
        title="Reason",
        description="For the people who read the runs later; it changes nothing.",
    ),
}


@dag(dag_id=Path(__file__).stem, schedule=None, params=PARAMS, max_active_runs=1, **dag_arguments(__doc__, "swap"))
def switchyard_rollback() -> None:
    RollbackOperator(task_id="roll_back", task_display_name="roll back")


rollback_dag = switchyard_rollback()
