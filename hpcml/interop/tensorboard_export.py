"""Runs as TensorBoard reads them: a folder with one event file for each, as in ``LOGDIR/<experiment>/<uid>``.

TensorBoard's own writer frames the records. Values are 32-bit there, and steps are kept. The settings of a run are put
into the HParams tab; its state is told there as success or failure.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcml.interop.exported import Export, WholeRun, clean, needing
from hpcml.interop.output import file_name
from hpcml.model.state import State


def write_tensorboard(export: Export, folder: Path) -> None:
    """Write one event file for each run below *folder*.

    Experiments and uids become folder names by `file_name`. A run that has not ended has no end in the HParams tab.
    Raises `ConfigError` where tensorboard is missing.
    """
    experiments: dict[str, str] = {}
    taken: dict[str, set[str]] = {}
    names: set[str] = set()
    for run in export.runs:
        record = run.record
        experiment = experiments.get(record.experiment) or file_name(record.experiment, names)
        experiments[record.experiment] = experiment
        into = folder / experiment / file_name(record.uid, taken.setdefault(experiment, set()))
        into.mkdir(parents=True)
        _write(run, into / f"events.out.tfevents.{max(0, int(run.t_zero)):010d}.hpcml")


def _write(run: WholeRun, path: Path) -> None:
    with needing("tensorboard", extra="tensorboard"):
        from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 - an extra
        from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415
        from tensorboard.summary.writer.record_writer import RecordWriter  # noqa: PLC0415
    with path.open("xb") as file:
        records = RecordWriter(file)

        def put(t_s: float, **what: Any) -> None:  # noqa: ANN401 - fields of an Event
            records.write(Event(wall_time=run.t_zero + t_s, **what).SerializeToString())

        put(0.0, file_version="brain.Event:2")
        put(0.0, summary=Summary(value=[_settings(run)]))
        for name, points in run.curves.items():
            tag = clean(name)
            for point in points:
                put(
                    point.t_s,
                    step=point.step,
                    summary=Summary(value=[Summary.Value(tag=tag, simple_value=point.value)]),
                )
        if run.record.state.is_final:
            put(max((event.t_s for event in run.events), default=0.0), summary=Summary(value=[_end(run)]))


def _settings(run: WholeRun) -> Any:  # noqa: ANN401 - a protocol buffer, of a library without types
    """Return the settings as the HParams tab shows them: numbers, booleans and texts; others are left out."""
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2  # noqa: PLC0415 - an extra

    start = plugin_data_pb2.SessionStartInfo(group_name=clean(run.record.uid), start_time_secs=run.t_zero)
    for key, value in run.record.params.items():
        if isinstance(value, bool):
            start.hparams[clean(key)].bool_value = value
        elif isinstance(value, int | float):
            start.hparams[clean(key)].number_value = value
        elif isinstance(value, str):
            start.hparams[clean(key)].string_value = clean(value)
    return _hparams(metadata.SESSION_START_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_start_info=start))


def _end(run: WholeRun) -> Any:  # noqa: ANN401
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2  # noqa: PLC0415 - an extra

    succeeded = run.record.state is State.COMPLETED
    status = api_pb2.STATUS_SUCCESS if succeeded else api_pb2.STATUS_FAILURE
    end = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=run.record.t_end or 0.0)
    return _hparams(metadata.SESSION_END_INFO_TAG, plugin_data_pb2.HParamsPluginData(session_end_info=end))


def _hparams(tag: str, content: Any) -> Any:  # noqa: ANN401
    from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415 - an extra
    from tensorboard.plugins.hparams import metadata  # noqa: PLC0415

    return Summary.Value(tag=tag, tensor=metadata.NULL_TENSOR, metadata=metadata.create_summary_metadata(content))
