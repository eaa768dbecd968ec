"""
# The control topic

This is the sensor DAG.

**What it does.** One round: every message that waits on the control topic is stored in `control_raw`, settled or
accepted as a swap, and then committed. Then it does what is due: deadlines, outcomes that a crash has left open,
generations that hang instead of retiring, what failed swaps have left behind. If a swap needs a driver, the same
task starts its run of `switchyard_generation`; the task's link *Started generation* leads there.

**When it runs.** When a message arrives on the control topic, and each minute. The watcher in the triggerer takes the
message first, and the run that it starts shows what was taken. What the watcher has missed or could not take is taken
here.
`switchyard up` also starts one. With nothing active and nothing asked for, a round asks for the default topics.

**Is it safe to run again?** Yes, at any time: a message is handled once, however often it is read.

**When it fails.** It is tried again. Most often the broker cannot be reached; its messages stay on the topic and
are handled when it is back. The log names the cause, and so does a line in `logs`, once for each cause. A message
that is refused does not fail the task: the reason is in `swap_history` and `logs`, and in `switchyard history`.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import Asset, AssetOrTimeSchedule, AssetWatcher, CronTriggerTimetable, dag

from switchyard.airflow.control_operators import ControlOperator
from switchyard.airflow.control_watcher import ControlTopicWatcher
from switchyard.airflow.defaults import dag_arguments
from switchyard.settings import load_settings

TOPIC = load_settings().control_topic
CONTROL_TOPIC = Asset(
    "switchyard_control_topic",
    uri=f"x-switchyard://topics/{TOPIC}",
    group="switchyard",
    watchers=[AssetWatcher(name="switchyard_control_watcher", trigger=ControlTopicWatcher(topics=[TOPIC]))],
)


@dag(
    dag_id=Path(__file__).stem,
    schedule=AssetOrTimeSchedule(
        timetable=CronTriggerTimetable("* * * * *", timezone="UTC"),
        assets=[CONTROL_TOPIC],
    ),
    max_active_runs=1,
    dagrun_timeout=timedelta(minutes=10),
    **dag_arguments(__doc__, "swap", "sensor"),
)
def switchyard_control() -> None:
    ControlOperator(task_id="take_commands", task_display_name="take commands, do what is due")


control_dag = switchyard_control()
