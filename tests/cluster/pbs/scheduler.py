"""The double's server side of jobs: the queue, the nodes, and every way in which a job can end."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.pbs import mom
from tests.cluster.pbs.model import NODES, OWNER, SERVER, Job, Spec, comment_clock, fit, why_never

PRERUN_S = 0.05  # state R with substate 41


@dataclass
class Scheduler:
    """All jobs, and time passing over them."""

    state: Path
    kill_delay_s: float = 1.0  # PBS: 10
    closed: bool = False  # nothing is started
    jobs: dict[int, Job] = field(default_factory=dict)
    next_number: int = 1
    live: dict[str, Job] = field(default_factory=dict)  # running, by id
    waiting: dict[int, Job] = field(default_factory=dict)  # plain jobs and arrays with something to start
    held: dict[int, Job] = field(default_factory=dict)

    def add(self, spec: Spec, size: int | None) -> Job:
        job = Job(self.next_number, spec)
        self.next_number += 1
        if size is not None:
            job.subjobs = {index: Job(job.number, spec, parent=job, index=index) for index in range(size)}
        self.jobs[job.number] = job
        if spec.depend or spec.hold != "n":
            if spec.depend:
                spec.hold = "s"
            # As of a real server: the jobs of an array that is held are in state Q, and tell of it in Hold_Types alone
            job.state, job.substate = "H", 22 if spec.depend else 20
            self.held[job.number] = job
        else:
            self.waiting[job.number] = job
        self.tick()
        return job

    @staticmethod
    def members(job: Job) -> list[Job]:
        return [job, *(job.subjobs or {}).values()]

    def tick(self) -> None:
        """Let time pass: ends first, then dependencies, then starts."""
        for job in list(self.live.values()):
            self._watch(job)
        for job in list(self.held.values()):
            if job.spec.depend:
                self._weigh_dependency(job)
        if not self.closed:
            for job in list(self.waiting.values()):
                self._try(job)

    def pretend_to_run(self) -> None:
        """Show what waits as running: a thousand processes would be a load, and nobody looks at them."""
        for job in self.waiting.values():
            job.state, job.substate, job.run_count = "R", 42, 1
        self.waiting.clear()

    def _try(self, job: Job) -> None:
        if job.subjobs is None:
            if self._start(job):
                self.waiting.pop(job.number, None)
            return
        limit = job.spec.parallelism or len(job.subjobs)
        while job.next_index < len(job.subjobs) and job.running < limit:
            subjob = job.subjobs[job.next_index]
            if subjob.state == "Q" and not self._start(subjob):
                return
            job.next_index += 1
        if job.next_index >= len(job.subjobs):
            self.waiting.pop(job.number, None)

    def _start(self, job: Job) -> bool:
        if never := why_never(job.spec):
            (job.parent or job).comment = never
            return False
        free = {node: dict(room) for node, room in NODES.items()}
        used: dict[str, int] = {}
        for other in self.live.values():
            for node, chunk in other.placed:
                used[node] = used.get(node, 0) + (1 if "excl" not in other.spec.place else 1000)
                for name, count in chunk.need.items():
                    free[node][name] -= count
                if "excl" in other.spec.place:
                    free[node] = dict.fromkeys(free[node], -1)
        placed = fit(job.spec, free, used)
        if isinstance(placed, str):
            job.comment = f"Not Running: Insufficient amount of resource: {placed} "
            return False
        job.placed, job.state, job.substate = placed, "R", 41
        job.stime, job.obittime, job.exit_status = time.time(), None, None
        job.run_count += 1
        if mom.lacks_folder(job):
            return self._give_up(job)
        job.comment = f"Job run at {comment_clock()} on {job.exec_vnode}"
        if (parent := job.parent) is not None:
            parent.running += 1
            if parent.state != "B":
                parent.state, parent.substate, parent.stime = "B", 70, time.time()
                parent.comment = f"Job Array Began at {comment_clock()}"
        self.live[job.id] = job
        mom.start(job, self.state)
        return True

    @staticmethod
    def _give_up(job: Job) -> bool:
        # Measured: 21 tries within some seconds, then held.
        job.placed, job.state, job.substate, job.spec.hold = [], "H", 20, "s"
        job.run_count, job.exit_status = 21, -3
        job.comment = "job held, too many failed attempts to run"
        return True

    def _watch(self, job: Job) -> None:
        now = time.time()
        started = job.stime or now
        if job.substate == 41 and now - started > PRERUN_S:
            job.substate = 42
        if job.state == "E":
            self._leave(job)
            return
        limit = job.spec.walltime_s
        if limit is not None and job.overran is None and not job.deleted and now - started > limit:
            job.overran = round(now - started)
            mom.note(job, f"=>> PBS: job killed: walltime {max(job.overran, limit + 1)} exceeded limit {limit}")
            self._terminate(job)
        if job.kill_at is not None and now > job.kill_at:
            mom.tell(job.sessions, signal.SIGKILL)
            job.kill_at = now + 0.5
        if (status := mom.reap(job)) is not None:
            job.exit_status = -29 if job.overran is not None else status
            job.obittime, job.kill_at = now, None
            if job.rerun:
                self._requeue(job)
            else:
                job.state, job.substate = "E", 51

    def _terminate(self, job: Job) -> None:
        mom.tell(job.sessions, signal.SIGTERM)
        job.kill_at = time.time() + self.kill_delay_s

    def _requeue(self, job: Job) -> None:
        del self.live[job.id]
        job.state, job.substate, job.rerun, job.placed, job.exit_status = "Q", 10, False, [], -11
        top = job.parent or job
        if job.parent:
            job.parent.running -= 1
            job.parent.next_index = min(job.parent.next_index, job.index or 0)
        self.waiting[top.number] = top

    def _leave(self, job: Job) -> None:
        """From E to F: the output is in its place now."""
        mom.deliver(job)
        del self.live[job.id]
        job.ended_at = time.time()
        status = job.exit_status or 0
        job.state, job.substate = "F" if job.parent is None else "X", 92 if status == 0 else 93
        ends = "finished" if status == 0 else "failed"
        if job.overran is not None:
            ends = "exceeded resource walltime"
        if job.deleted:
            job.substate, ends = 91, f"terminated by {OWNER}"
        job.comment = f"{(job.comment or '').partition(' and ')[0]} and {ends}"
        if job.parent:
            job.parent.running -= 1
            self._subjob_ended(job.parent)

    def _subjob_ended(self, array: Job) -> None:
        assert array.subjobs is not None
        array.expired += 1
        if array.expired < len(array.subjobs):
            return
        codes = [one.exit_status for one in array.subjobs.values() if one.own_record]
        failed = any(code not in (0, None) for code in codes)
        array.exit_status = 1 if failed else 0
        array.state, array.substate = "F", 91 if array.deleted else 93 if failed else 92
        array.obittime = array.ended_at = time.time()
        array.comment = f"{array.comment or ''} and {'failed' if failed else 'finished'}"
        self.waiting.pop(array.number, None)
        for one in array.subjobs.values():
            one.state, one.ended_at = "F", one.ended_at or time.time()
            if array.deleted and not one.deleted:
                one.own_record = False  # overwritten: what it ended with is lost
            if not one.own_record:
                one.substate, one.exit_status = array.substate, array.exit_status
                one.stime, one.obittime, one.comment = array.stime or array.ctime, array.obittime, "Subjob finished"

    def delete(self, job: Job) -> None:
        """Do what qdel does; the job may live on for a while."""
        if job.subjobs is not None:
            job.deleted = True
            for one in job.subjobs.values():
                if not one.ended:
                    self.delete(one)
            if job.subjobs and all(one.ended for one in job.subjobs.values()) and not job.ended:
                job.expired = len(job.subjobs) - 1
                self._subjob_ended(job)
            return
        if job.id in self.live:
            if not job.deleted:
                job.deleted = True
                job.comment = f"{job.comment} and terminated by {OWNER}"
                self._terminate(job)
            return
        job.ended_at = time.time()
        if job.parent is not None:
            job.state, job.substate, job.own_record, job.exit_status = "X", 91, False, job.parent.exit_status or 0
            job.comment = "Subjob finished"
            job.deleted = True
            self._subjob_ended(job.parent)
            return
        job.state, job.substate, job.comment = "F", 91, None
        self.waiting.pop(job.number, None)
        self.held.pop(job.number, None)

    def signal(self, job: Job, number: int) -> None:
        """Signal the processes on the first node; tasks on others are not reached."""
        mom.tell(job.sessions[:1], number)

    def rerun(self, job: Job) -> None:
        """Do what qrerun by an operator, or the loss of a node, does."""
        job.rerun = True
        mom.tell(job.sessions, signal.SIGKILL)

    def _weigh_dependency(self, job: Job) -> None:
        verdicts = []
        for part in (job.spec.depend or "").split(","):
            kind, *ids = part.split(":")
            for text in ids:
                other = self.jobs.get(int(text.partition(".")[0].rstrip("[]") or 0))
                verdicts.append(self._allows(kind, other))
        if False in verdicts:  # never again: PBS removes the job, and then those that wait for it
            for one in self.members(job):
                one.state, one.substate, one.ended_at = "F", 92, time.time()
            del self.held[job.number]
        elif None not in verdicts:
            job.state, job.substate, job.spec.hold = "Q", 10, "n"
            self.waiting[job.number] = self.held.pop(job.number)

    @staticmethod
    def _allows(kind: str, other: Job | None) -> bool | None:
        if other is None:
            return kind == "afterany"
        if not other.ended:
            return None
        good = other.exit_status == 0 and other.substate == 92
        return {"afterok": good, "afternotok": not good}.get(kind, True)

    def close(self) -> None:
        """Kill everything that still runs."""
        for job in self.live.values():
            mom.tell(job.sessions, signal.SIGKILL)

    def shown(self, text: str, *, history: bool) -> Job | str:
        """Return the job of an id, or PBS's word for why it is not shown: unknown, finished or malformed."""
        head, _, server = text.partition(".")
        number, bracket, index = head.partition("[")
        if not number.isdigit() or (server and server != SERVER):
            return "malformed"
        job = self.jobs.get(int(number))
        if job is None or (job.subjobs is None) != (not bracket):
            return "unknown"
        index = index.rstrip("]")
        if index:
            job = (job.subjobs or {}).get(int(index)) if index.isdigit() else None
            if job is None:
                return "unknown"
        return "finished" if job.state == "F" and not history else job
