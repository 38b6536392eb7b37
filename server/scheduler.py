"""Decides which requests run, which wait, and which models have a worker: events in, effects out.

Pure and synchronous: no clock, process or event loop. Every event takes the time `now` in
seconds of any steady clock and returns the effects to carry out, in order.

- A model runs at most `spec.load.n_slots` generations, and beside them MAX_EMBEDS requests for
  embeddings; the others wait, oldest first. An embedding holds no cells of the slots, and the
  worker gives it turns between their steps: in a slot it would wait for whole answers.
- At most `max_queue` requests wait in all; one more gets QueueFull.
- At most `max_loaded` models have a worker. A model without one takes the place of the least
  recently used: of an idle one at once; a busy one yields, which means that it still serves
  whoever waited for it when it was chosen, nobody later, and then stops. So neither side
  starves: what may come first is settled at that moment, and models get places in the order
  of their oldest waiting request.
- A load takes the newest spec that was asked for under its identity; a request under another
  identity has the model replaced when the requests before it have ended.
- A worker that dies under requests costs these an error and no others: who waited gets a new
  load. A load that fails is the error of all who waited for it. Each load that goes wrong thus
  ends at least one request, and no model is loaded again for nobody.
- A request that has no end `request_timeout` seconds after its arrival gets an error, wherever
  it is; one that runs is cancelled.
- A worker that runs requests and sends nothing for `decode_timeout` seconds is wedged: it is
  killed, and its requests get an error.
- A cancelled request holds its slot until the worker has ended it, but nobody waits for it:
  a worker with none but cancelled requests may be stopped, wedged or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from server.calls import ModelSpec
from server.deadlines import Deadlines
from server.effects import (
    CancelRunning,
    Effect,
    Fail,
    KillWorker,
    Loaded,
    Reject,
    StartWorker,
    StopWorker,
    Submit,
)
from server.errors import (
    LoadError,
    QueueFull,
    ServingError,
    ShuttingDown,
    WorkerDied,
    WorkerWedged,
)
from server.places import Worker
from server.waiting_room import Kind, Waiting, WaitingRoom


class Scheduler:
    """State of all models and requests. max_queue and max_loaded are 1 or more."""

    def __init__(
        self,
        *,
        max_queue: int,
        max_loaded: int,
        request_timeout: float | None = None,
        decode_timeout: float | None = None,
    ) -> None:
        """Timeouts of None never come."""
        assert max_queue >= 1 and max_loaded >= 1
        self._max_queue = max_queue
        self._max_loaded = max_loaded
        self._decode_timeout = decode_timeout
        self._deadlines = Deadlines(request_timeout)
        self._workers: dict[str, Worker] = {}
        self._waiting = WaitingRoom()
        self._running: dict[str, Worker] = {}
        self._arrived = 0
        self._shutting_down = False

    # -- events ----------------------------------------------------------------------------

    def on_request(self, id: str, spec: ModelSpec, now: float) -> list[Effect]:
        """A generation arrives. It ends by Reject, on_cancel or on_finished."""
        return self._on_arrival(id, spec, now, "generate")

    def on_embed(self, id: str, spec: ModelSpec, now: float) -> list[Effect]:
        """A request for embeddings arrives. It ends as a generation does."""
        return self._on_arrival(id, spec, now, "embed")

    def on_load(self, id: str, spec: ModelSpec, now: float) -> list[Effect]:
        """The model shall be loaded. It ends by Loaded, Reject or on_cancel."""
        return self._on_arrival(id, spec, now, "load")

    def on_unload(self, name: str, now: float) -> list[Effect]:
        """The model's worker shall stop once what it runs has ended."""
        if worker := self._workers.get(name):
            worker.closing = True
        return self._settle(now)

    def on_cancel(self, id: str, now: float) -> list[Effect]:
        """Nobody waits for the request any more. Unknown ids have ended already."""
        self._deadlines.end(id)
        self._waiting.remove(id)
        worker = self._running.get(id)
        if worker is None or id in worker.cancelled:
            return self._settle(now)
        worker.cancelled.add(id)
        worker.last_used = now
        return [CancelRunning(id), *self._settle(now)]

    def on_worker_ready(self, name: str, now: float) -> list[Effect]:
        """The model is loaded."""
        worker = self._workers[name]
        if worker.phase == "loading":
            worker.phase, worker.last_used = "ready", now
        return self._settle(now)

    def on_message(self, name: str, now: float) -> None:
        """The worker has sent something, whatever it was."""
        self._workers[name].heard = now

    def on_worker_exit(self, name: str, why: str, now: float) -> list[Effect]:
        """The worker's process has ended, asked to or not."""
        worker = self._workers.pop(name)
        effects: list[Effect] = []
        for id in sorted(worker.running):
            del self._running[id]
            self._deadlines.end(id)
            effects.append(Reject(id, WorkerDied(why)))
        if worker.phase == "loading":
            effects += self._reject(
                (w for w in self._waiting.of(name) if w.spec.identity == worker.spec.identity),
                partial(LoadError, why),
            )
        return effects + self._settle(now)

    def on_finished(self, id: str, now: float) -> list[Effect]:
        """The worker has ended the request, in whatever way."""
        self._deadlines.end(id)
        worker = self._running.pop(id)
        worker.end(id)
        worker.last_used = now
        return self._settle(now)

    def on_shutdown(self, now: float) -> list[Effect]:
        """Admit nothing more; what runs may end, then its worker stops."""
        self._shutting_down = True
        for worker in self._workers.values():
            worker.closing = True
        return self._reject(self._waiting, ShuttingDown) + self._settle(now)

    def tick(self, now: float) -> list[Effect]:
        """Time has passed: for keep_alives, for deadlines, and for workers that are silent."""
        return [*self._time_out(now), *self._kill_wedged(now), *self._settle(now)]

    # -- state -----------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When tick is next due; None if no time is set."""
        times = [self.expires_at(name) for name in self._workers]
        times += map(self._wedged_at, self._workers.values())
        times.append(self._deadlines.first())
        return min((at for at in times if at is not None), default=None)

    def expires_at(self, name: str) -> float | None:
        """When an idle model will be unloaded if nothing comes; None: never, or it is not idle."""
        worker = self._workers[name]
        idle = worker.phase == "ready" and not worker.busy and not self.waiting(name)
        return worker.last_used + worker.keep_alive if idle and worker.keep_alive >= 0 else None

    def workers(self) -> Iterable[Worker]:
        """Every model that holds a place, oldest first."""
        return self._workers.values()

    def waiting(self, name: str) -> int:
        """How many requests and loads wait for the model."""
        return self._waiting.length(name)

    def queue_lengths(self) -> dict[str, int]:
        """How many wait for each model that somebody waits for."""
        return self._waiting.lengths()

    def __repr__(self) -> str:
        models = [
            f"{name}={w.phase}" + "*" * w.closing + f" {len(w.running)}/{w.spec.load.n_slots}"
            for name, w in self._workers.items()
        ]
        waits = [f"{name}+{length}" for name, length in self.queue_lengths().items()]
        return f"<Scheduler {', '.join(models) or 'empty'}; waiting {' '.join(waits) or '0'}>"

    # -- decisions -------------------------------------------------------------------------

    def _on_arrival(self, id: str, spec: ModelSpec, now: float, kind: Kind) -> list[Effect]:
        assert id not in self._waiting and id not in self._running
        arrival = Waiting(id, spec, self._arrived, kind)
        self._arrived += 1
        if self._shutting_down:
            return [Reject(id, ShuttingDown())]
        if len(self._waiting) >= self._max_queue and not self._served_at_once(arrival):
            return [Reject(id, self._queue_full())]
        self._waiting.add(arrival)
        self._deadlines.begin(id, now)
        return self._settle(now)

    def _served_at_once(self, arrival: Waiting) -> bool:
        name = arrival.spec.name
        worker = self._workers.get(name)
        if worker is None or worker.phase != "ready":
            return False
        # Behind somebody for other weights it waits for these.
        if not all(map(worker.serves, [*self._waiting.of(name), arrival])):
            return False
        return worker.has_room(arrival.kind)

    def _settle(self, now: float) -> list[Effect]:
        """Bring the state to rest after any event."""
        effects: list[Effect] = []
        self._choose_who_yields()
        for name, worker in self._workers.items():
            effects += self._serve(name, worker, now)
        for name, worker in self._workers.items():
            if worker.phase != "stopping" and self._may_stop(name, worker, now):
                worker.phase = "stopping"
                effects.append(StopWorker(name))
        return [*effects, *self._start_workers(now)]

    def _serve(self, name: str, worker: Worker, now: float) -> Iterator[Effect]:
        """Hand over what waits, oldest first; what needs no slot passes those that do."""
        if worker.phase != "ready":
            return
        for waiting in self._waiting.of(name):
            if not worker.serves(waiting):
                break
            if not worker.has_room(waiting.kind):
                continue
            self._waiting.remove(waiting.id)
            worker.keep_alive, worker.last_used = waiting.spec.keep_alive, now
            if waiting.kind == "load":
                self._deadlines.end(waiting.id)
                yield Loaded(waiting.id)
                continue
            if not worker.running:
                worker.heard = now
            worker.start(waiting)
            self._running[waiting.id] = worker
            yield Submit(waiting.id)

    def _time_out(self, now: float) -> Iterator[Effect]:
        for id, error in self._deadlines.take_due(now):
            if worker := self._running.get(id):
                worker.cancelled.add(id)
                worker.last_used = now
                yield Fail(id, error)
                yield CancelRunning(id)
            else:
                self._waiting.remove(id)
                yield Reject(id, error)

    def _kill_wedged(self, now: float) -> Iterator[Effect]:
        for name, worker in self._workers.items():
            wedged_at = self._wedged_at(worker)
            if wedged_at is None or now < wedged_at:
                continue
            why = (
                f"it ran requests and sent nothing for the {self._decode_timeout:g} seconds"
                " of CORRAL_DECODE_TIMEOUT"
            )
            for id in sorted(worker.running - worker.cancelled):
                worker.cancelled.add(id)
                self._deadlines.end(id)
                yield Fail(id, WorkerWedged(f"the worker of {name} is killed: {why}"))
            worker.phase = "stopping"
            yield KillWorker(name, why)

    def _wedged_at(self, worker: Worker) -> float | None:
        """When it counts as wedged if it stays silent; None: nobody expects it to speak."""
        if self._decode_timeout is None or worker.phase != "ready" or not worker.running:
            return None
        return worker.heard + self._decode_timeout

    def _may_stop(self, name: str, worker: Worker, now: float) -> bool:
        if worker.busy:
            return False
        head = self._waiting.head(name)
        if head is not None:
            return not worker.serves(head)
        expiry = self.expires_at(name)
        leaves = worker.closing or worker.yields_from is not None
        return leaves or (expiry is not None and now >= expiry)

    def _choose_who_yields(self) -> None:
        """As many workers yield as models wait for a place beyond those that come free."""
        homeless = [name for name in self._waiting.models() if name not in self._workers]
        staying = [w for w in self._workers.values() if w.phase != "stopping"]
        leaving = len(self._workers) - len(staying)
        wanted = max(0, len(homeless) - self._free_places() - leaving)
        for rank, worker in enumerate(sorted(staying, key=self._reluctance)):
            if rank >= wanted:
                worker.yields_from = None
            elif worker.yields_from is None:
                worker.yields_from = self._arrived

    def _reluctance(self, worker: Worker) -> tuple[bool, bool, bool, float]:
        """Sorts idle workers first, then those that close or yield anyway, then by last use."""
        wanted = worker.busy or self.waiting(worker.spec.name) > 0
        return wanted, not worker.closing, worker.yields_from is None, worker.last_used

    def _start_workers(self, now: float) -> Iterator[Effect]:
        for name in self._waiting.models():
            if name not in self._workers and self._free_places() > 0:
                spec = self._spec_to_load(name)
                self._workers[name] = Worker(spec, spec.keep_alive, last_used=now)
                yield StartWorker(spec)

    def _spec_to_load(self, name: str) -> ModelSpec:
        """The newest of the weights whose turn it is: options edited meanwhile count."""
        first, *later = (waiting.spec for waiting in self._waiting.of(name))
        return next((s for s in reversed(later) if s.identity == first.identity), first)

    def _free_places(self) -> int:
        return self._max_loaded - len(self._workers)

    def _reject(
        self, waiting: Iterable[Waiting], error: Callable[[], ServingError]
    ) -> list[Effect]:
        """Each gets an error of its own: a raised one carries its traceback."""
        rejected = list(waiting)
        for each in rejected:
            self._waiting.remove(each.id)
            self._deadlines.end(each.id)
        return [Reject(each.id, error()) for each in rejected]

    def _queue_full(self) -> QueueFull:
        return QueueFull(
            f"{len(self._waiting)} requests wait already and CORRAL_MAX_QUEUE is "
            f"{self._max_queue}: try again later"
        )
