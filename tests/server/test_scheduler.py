"""The scheduling policy, with integers for clocks and no process."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)
from made_calls import made_spec

from server.calls import ModelSpec
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
    ShuttingDown,
    TimedOut,
    WorkerDied,
    WorkerWedged,
)
from server.protocol import MAX_EMBEDS
from server.scheduler import Scheduler

A, B, C = made_spec("a"), made_spec("b"), made_spec("c")


def scheduler(*, max_queue: int = 100, max_loaded: int = 9) -> Scheduler:
    return Scheduler(max_queue=max_queue, max_loaded=max_loaded)


def with_ready(*specs: ModelSpec, max_loaded: int = 9) -> Scheduler:
    """A scheduler whose models are loaded and idle, last used at 0, 1, …"""
    made = scheduler(max_loaded=max_loaded)
    for now, spec in enumerate(specs):
        made.on_load(f"load {spec.name}", spec, now)
        made.on_worker_ready(spec.name, now)
    return made


def ends(effects: list[Effect]) -> dict[str, type[Exception]]:
    return {effect.id: type(effect.error) for effect in effects if isinstance(effect, Reject)}


def test_requests_wait_while_their_model_loads_and_run_in_order_of_arrival() -> None:
    s = scheduler()
    assert s.on_request("1", A, 0) == [StartWorker(A)]
    assert s.on_request("2", A, 0) == []
    assert repr(s) == "<Scheduler a=loading 0/1; waiting a+2>"
    assert s.on_worker_ready("a", 5) == [Submit("1")]
    assert s.on_finished("1", 6) == [Submit("2")]
    assert repr(s) == "<Scheduler a=ready 1/1; waiting 0>"


def test_other_models_do_not_notice_a_load() -> None:
    s = with_ready(B)
    s.on_request("1", A, 10)
    assert s.on_request("2", B, 10) == [Submit("2")]


def test_no_more_requests_run_than_the_model_has_slots() -> None:
    two = made_spec("a", n_slots=2)
    s = with_ready(two)
    submitted = [s.on_request(str(n), two, 1) for n in range(3)]
    assert submitted == [[Submit("0")], [Submit("1")], []]


def test_embeddings_take_no_slot_and_have_a_bound_of_their_own() -> None:
    s = with_ready(A)
    assert s.on_request("g1", A, 1) == [Submit("g1")]
    for n in range(MAX_EMBEDS):
        assert s.on_embed(f"e{n}", A, 1) == [Submit(f"e{n}")]
    assert s.on_embed("late", A, 1) == []
    assert s.on_request("g2", A, 1) == []
    assert s.on_finished("g1", 2) == [Submit("g2")]
    assert s.on_finished("e3", 2) == [Submit("late")]
    # A cancelled one has its place until the worker has ended it.
    assert s.on_cancel("e4", 3) == [CancelRunning("e4")]
    assert s.on_embed("later", A, 3) == []
    assert s.on_finished("e4", 4) == [Submit("later")]


def test_an_embedding_keeps_its_model_loaded_and_counts_as_its_use() -> None:
    s = with_ready(made_spec("a", keep_alive=5))
    s.on_embed("e", made_spec("a", keep_alive=5), 1)
    assert s.expires_at("a") is None
    s.on_finished("e", 7)
    assert s.expires_at("a") == 12


def test_an_embedding_that_must_wait_counts_in_the_queue() -> None:
    s = scheduler(max_queue=1)
    s.on_embed("e1", A, 0)
    assert ends(s.on_embed("e2", A, 0)) == {"e2": QueueFull}
    s.on_worker_ready("a", 1)
    assert s.on_embed("e3", A, 1) == [Submit("e3")]


def test_a_full_queue_refuses_the_next_request_and_no_other() -> None:
    s = scheduler(max_queue=2)
    s.on_request("1", A, 0)
    s.on_request("2", A, 0)
    refused = s.on_request("3", B, 0)
    assert ends(refused) == {"3": QueueFull}
    assert "CORRAL_MAX_QUEUE is 2" in str(refused[0])
    assert s.on_worker_ready("a", 1) == [Submit("1")]
    assert s.on_request("4", A, 1) == []


def test_a_full_queue_of_one_model_does_not_refuse_what_an_idle_one_can_run() -> None:
    s = scheduler(max_queue=1)
    s.on_load("l", B, 0)
    s.on_worker_ready("b", 0)
    s.on_request("1", A, 0)
    assert s.on_request("2", B, 0) == [Submit("2")]
    assert s.on_load("l2", B, 0) == [Loaded("l2")]
    assert ends(s.on_request("3", B, 0)) == {"3": QueueFull}


def test_a_full_queue_refuses_what_stands_behind_a_request_for_other_weights() -> None:
    s = scheduler(max_queue=2)
    s.on_load("l", A, 0)
    s.on_worker_ready("a", 0)
    s.on_request("1", A, 0)
    s.on_request("2", made_spec("a", identity="other"), 0)
    s.on_request("3", A, 0)
    assert ends(s.on_load("late", A, 0)) == {"late": QueueFull}


def test_a_load_is_done_when_the_model_is_ready_though_all_slots_are_taken() -> None:
    s = scheduler()
    s.on_request("1", A, 0)
    s.on_request("2", A, 0)
    s.on_load("load", A, 0)
    assert s.on_worker_ready("a", 1) == [Submit("1"), Loaded("load")]


def test_a_load_of_a_loaded_model_renews_its_keep_alive() -> None:
    s = with_ready(A)
    assert s.on_load("again", made_spec("a", keep_alive=10), 100) == [Loaded("again")]
    assert s.next_deadline() == 110


# -- keep_alive ------------------------------------------------------------------------------


def test_an_idle_model_is_stopped_when_its_keep_alive_is_over() -> None:
    s = with_ready(made_spec("a", keep_alive=10))
    assert s.next_deadline() == 10
    assert s.tick(9) == []
    assert s.tick(10) == [StopWorker("a")]
    assert s.next_deadline() is None


def test_keep_alive_counts_from_the_end_of_the_last_request_and_is_its_value() -> None:
    s = with_ready(made_spec("a", keep_alive=10))
    s.on_request("1", made_spec("a", keep_alive=50), 5)
    assert s.next_deadline() is None
    assert s.tick(99) == []
    s.on_finished("1", 100)
    assert s.expires_at("a") == 150


def test_a_negative_keep_alive_is_for_ever_and_zero_ends_with_the_last_request() -> None:
    assert with_ready(made_spec("a", keep_alive=-1)).next_deadline() is None
    zero = made_spec("a", keep_alive=0)
    s = scheduler()
    s.on_request("1", zero, 0)
    s.on_request("2", zero, 0)
    s.on_worker_ready("a", 1)
    assert s.on_finished("1", 2) == [Submit("2")]
    assert s.on_finished("2", 3) == [StopWorker("a")]


# -- unload ----------------------------------------------------------------------------------


def test_an_unload_waits_for_what_runs_and_who_waits_gets_a_new_load() -> None:
    s = with_ready(A)
    s.on_request("1", A, 1)
    s.on_request("2", A, 1)
    assert s.on_unload("a", 2) == []
    assert repr(s) == "<Scheduler a=ready* 1/1; waiting a+1>"
    assert s.on_finished("1", 3) == [StopWorker("a")]
    assert s.on_request("3", A, 3) == []
    assert s.on_worker_exit("a", "stopped", 4) == [StartWorker(A)]
    assert s.on_worker_ready("a", 5) == [Submit("2")]


def test_an_unload_ends_a_load_and_does_not_wait_for_cancelled_requests() -> None:
    s = scheduler()
    s.on_request("1", A, 0)
    assert s.on_unload("a", 1) == [StopWorker("a")]
    s.on_worker_exit("a", "stopped", 2)
    s.on_worker_ready("a", 3)
    assert s.on_cancel("1", 4) == [CancelRunning("1")]
    assert s.on_unload("a", 5) == [StopWorker("a")]
    assert ends(s.on_worker_exit("a", "killed", 6)) == {"1": WorkerDied}


def test_unloading_what_is_not_loaded_does_nothing() -> None:
    assert scheduler().on_unload("a", 0) == []


def test_a_model_under_another_identity_is_replaced_when_its_requests_have_ended() -> None:
    old, new = made_spec("a", n_slots=2), made_spec("a", n_slots=2, identity="new")
    s = with_ready(old)
    assert s.on_request("1", old, 1) == [Submit("1")]
    assert s.on_request("2", new, 1) == []
    assert s.on_request("3", new, 1) == []
    assert s.on_finished("1", 2) == [StopWorker("a")]
    assert s.on_worker_exit("a", "stopped", 3) == [StartWorker(new)]
    assert s.on_worker_ready("a", 4) == [Submit("2"), Submit("3")]


# -- cancel ----------------------------------------------------------------------------------


def test_a_waiting_request_that_is_cancelled_is_forgotten() -> None:
    s = scheduler()
    s.on_request("1", A, 0)
    s.on_request("2", A, 0)
    assert s.on_cancel("1", 0) == []
    assert s.on_worker_ready("a", 1) == [Submit("2")]


def test_a_running_request_that_is_cancelled_keeps_its_slot_until_the_worker_has_ended_it() -> None:
    s = with_ready(A)
    s.on_request("1", A, 1)
    s.on_request("2", A, 1)
    assert s.on_cancel("1", 2) == [CancelRunning("1")]
    assert s.on_cancel("1", 2) == []
    assert s.on_finished("1", 3) == [Submit("2")]


def test_a_request_that_was_cancelled_does_not_count_once_it_has_ended() -> None:
    s = with_ready(A)
    s.on_request("1", A, 1)
    s.on_cancel("1", 2)
    s.on_finished("1", 3)
    s.on_request("2", A, 4)
    assert s.on_unload("a", 5) == []


# -- deaths ----------------------------------------------------------------------------------


def test_a_worker_that_dies_costs_what_ran_an_error_and_who_waited_gets_a_new_load() -> None:
    s = with_ready(A)
    s.on_request("1", A, 1)
    s.on_request("2", A, 1)
    effects = s.on_worker_exit("a", "SIGSEGV", 2)
    assert ends(effects) == {"1": WorkerDied}
    assert effects[-1] == StartWorker(A)


def test_a_load_that_fails_is_the_error_of_all_who_waited_and_is_not_tried_for_nobody() -> None:
    s = scheduler()
    s.on_request("1", A, 0)
    s.on_load("load", A, 0)
    s.on_request("2", made_spec("a", identity="new"), 0)
    effects = s.on_worker_exit("a", "no such file", 1)
    assert ends(effects) == {"1": LoadError, "load": LoadError}
    assert effects[-1] == StartWorker(made_spec("a", identity="new"))
    assert ends(s.on_worker_exit("a", "no such file", 2)) == {"2": LoadError}
    assert repr(s) == "<Scheduler empty; waiting 0>"


# -- places ----------------------------------------------------------------------------------


def test_the_least_recently_used_idle_model_makes_room_at_once() -> None:
    s = with_ready(A, B, max_loaded=2)
    s.on_request("1", A, 10)
    s.on_finished("1", 11)
    assert s.on_request("2", C, 12) == [StopWorker("b")]
    assert s.on_worker_exit("b", "stopped", 13) == [StartWorker(C)]


def test_a_model_that_is_kept_for_ever_makes_room_too() -> None:
    s = with_ready(made_spec("a", keep_alive=-1), max_loaded=1)
    assert s.on_request("1", B, 1) == [StopWorker("a")]


def test_a_busy_model_serves_who_waited_already_and_nobody_later_before_it_makes_room() -> None:
    s = with_ready(A, max_loaded=1)
    s.on_request("1", A, 1)
    s.on_request("2", A, 1)
    s.on_request("3", B, 2)
    s.on_request("4", A, 3)
    assert s.on_finished("1", 4) == [Submit("2")]
    assert s.on_finished("2", 5) == [StopWorker("a")]
    assert s.on_worker_exit("a", "stopped", 6) == [StartWorker(B)]
    # Now b is the one that is waited for: it serves its own and gives the place back.
    assert s.on_worker_ready("b", 7) == [Submit("3")]
    assert s.on_request("5", B, 7) == []
    assert s.on_finished("3", 8) == [StopWorker("b")]
    assert s.on_worker_exit("b", "stopped", 9) == [StartWorker(A)]


def test_a_busy_model_keeps_its_place_when_the_one_that_wanted_it_is_cancelled() -> None:
    s = with_ready(A, max_loaded=1)
    s.on_request("1", A, 1)
    s.on_request("2", B, 1)
    s.on_request("3", A, 2)
    s.on_cancel("2", 3)
    assert s.on_finished("1", 4) == [Submit("3")]


def test_an_idle_model_makes_room_though_a_busy_one_is_to_be_unloaded() -> None:
    s = with_ready(A, B, max_loaded=2)
    s.on_request("1", A, 2)
    s.on_unload("a", 3)
    assert s.on_request("2", C, 4) == [StopWorker("b")]


def test_a_busy_model_that_yields_keeps_its_place_when_another_falls_idle() -> None:
    s = with_ready(A, B, max_loaded=2)
    s.on_request("1", A, 2)
    s.on_request("2", B, 3)
    s.on_request("3", C, 4)
    s.on_request("4", A, 5)
    assert s.on_finished("2", 6) == [StopWorker("b")]
    assert s.on_worker_exit("b", "stopped", 7) == [StartWorker(C)]
    assert s.on_finished("1", 8) == [Submit("4")]


def test_a_model_is_loaded_with_the_newest_options_that_were_asked_for() -> None:
    edited = made_spec("a", n_slots=4)
    s = with_ready(A)
    s.on_request("1", A, 1)
    s.on_request("2", A, 1)
    s.on_unload("a", 2)
    s.on_request("3", edited, 3)
    s.on_finished("1", 4)
    assert s.on_worker_exit("a", "stopped", 5) == [StartWorker(edited)]


# -- timeouts --------------------------------------------------------------------------------


def hasty(*, request: float | None = None, decode: float | None = None) -> Scheduler:
    """With a model a that is ready."""
    s = Scheduler(max_queue=9, max_loaded=9, request_timeout=request, decode_timeout=decode)
    s.on_load("load", A, 0)
    s.on_worker_ready("a", 0)
    return s


def failed(effects: list[Effect]) -> dict[str, type[Exception]]:
    return {effect.id: type(effect.error) for effect in effects if isinstance(effect, Fail)}


def test_a_request_that_waits_past_its_deadline_gets_an_error_and_leaves() -> None:
    s = hasty(request=10)
    s.on_request("1", B, 0)
    s.on_request("2", B, 4)
    assert s.next_deadline() == 10
    assert s.tick(9) == []
    late = s.tick(10)
    assert ends(late) == {"1": TimedOut}
    assert "10 seconds of CORRAL_REQUEST_TIMEOUT" in str(late[0])
    assert s.next_deadline() == 14
    # The load goes on, for whoever is left.
    assert s.on_worker_ready("b", 11) == [Submit("2")]


def test_a_request_that_runs_past_its_deadline_fails_at_once_and_is_cancelled() -> None:
    s = hasty(request=10)
    s.on_request("1", A, 0)
    s.on_request("2", A, 1)
    late = s.tick(10)
    assert failed(late) == {"1": TimedOut}
    assert late[1:] == [CancelRunning("1")]
    # Its slot is not free before the worker has ended it.
    assert s.on_finished("1", 10) == [Submit("2")]
    assert s.on_cancel("1", 10) == []


def test_a_load_has_a_deadline_too() -> None:
    s = hasty(request=10)
    s.on_load("slow", B, 1)
    assert ends(s.tick(11)) == {"slow": TimedOut}


def test_what_has_ended_has_no_deadline() -> None:
    s = hasty(request=10)
    s.on_request("done", A, 1)
    s.on_finished("done", 2)
    s.on_request("left", A, 2)
    s.on_cancel("left", 3)
    s.on_finished("left", 3)
    s.on_request("died", A, 3)
    s.on_worker_exit("a", "gone", 4)
    s.on_request("unlucky", A, 4)
    s.on_worker_exit("a", "no memory", 5)
    assert s.next_deadline() is None
    assert s.tick(100) == []


def test_a_worker_that_is_silent_while_it_runs_requests_is_killed() -> None:
    s = hasty(decode=10)
    s.on_request("1", A, 50)
    s.on_request("2", A, 50)
    assert s.next_deadline() == 60
    s.on_message("a", 55)
    assert s.tick(60) == []
    assert s.next_deadline() == 65
    wedged = s.tick(65)
    assert failed(wedged) == {"1": WorkerWedged}
    assert "sent nothing for the 10 seconds of CORRAL_DECODE_TIMEOUT" in str(wedged[0])
    assert isinstance(wedged[1], KillWorker) and wedged[2:] == []
    assert s.tick(99) == []
    # Who waited gets a new load.
    effects = s.on_worker_exit("a", "killed", 100)
    assert ends(effects) == {"1": WorkerDied}
    assert effects[1:] == [StartWorker(A)]


def test_silence_counts_from_the_first_request_after_an_idle_time() -> None:
    s = hasty(decode=10)
    s.on_request("1", A, 50)
    s.on_finished("1", 51)
    s.on_request("2", A, 200)
    assert s.tick(209) == []
    assert failed(s.tick(210)) == {"2": WorkerWedged}


def test_a_worker_that_does_not_end_cancelled_requests_is_wedged_too() -> None:
    s = hasty(decode=10)
    s.on_request("1", A, 0)
    s.on_cancel("1", 1)
    effects = s.tick(10)
    assert failed(effects) == {}
    assert isinstance(effects[0], KillWorker)


def test_nobody_expects_an_idle_a_loading_or_a_stopping_worker_to_speak() -> None:
    s = hasty(decode=10)
    s.on_load("slow", B, 0)
    s.on_request("1", A, 0)
    s.on_cancel("1", 0)
    s.on_unload("a", 0)
    assert s.tick(100) == []


# -- shutdown --------------------------------------------------------------------------------


def test_a_shutdown_ends_what_waits_lets_run_what_runs_and_admits_nothing() -> None:
    s = with_ready(A, B)
    s.on_request("1", A, 2)
    s.on_request("2", A, 2)
    s.on_request("3", C, 2)
    effects = s.on_shutdown(3)
    assert ends(effects) == {"2": ShuttingDown, "3": ShuttingDown}
    assert effects[-2:] == [StopWorker("b"), StopWorker("c")]
    assert ends(s.on_request("4", A, 4)) == {"4": ShuttingDown}
    assert s.on_finished("1", 5) == [StopWorker("a")]


# -- properties ------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c", "d"])
MAX_LOADED = 2
REQUEST_TIMEOUT = 9
DECODE_TIMEOUT = 5
KEEP_ALIVES = st.sampled_from([-1.0, 0.0, 3.0])


class World(RuleBasedStateMachine):
    """Drives the scheduler with whatever may happen, and keeps its own books."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(
            max_queue=6,
            max_loaded=MAX_LOADED,
            request_timeout=REQUEST_TIMEOUT,
            decode_timeout=DECODE_TIMEOUT,
        )
        self.now = 0
        self.arrived: dict[str, int] = {}
        self.heard: dict[str, int] = {}
        self.ids = 0
        self.specs: dict[str, ModelSpec] = {}
        self.open: set[str] = set()
        self.running: set[str] = set()
        self.cancelled: set[str] = set()
        self.failed: set[str] = set()
        """Their clients have been told an error, and their worker has not ended them."""
        self.workers: dict[str, str] = {}

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case StartWorker(spec):
                    assert spec.name not in self.workers
                    assert any(self.specs[id].name == spec.name for id in self.open)
                    self.workers[spec.name] = "loading"
                case StopWorker(name):
                    assert self.workers[name] in ("loading", "ready")
                    live = self.running - self.cancelled - self.failed
                    assert not any(self.specs[id].name == name for id in live)
                    self.workers[name] = "stopping"
                case Submit(id):
                    assert id in self.open
                    assert self.workers[self.specs[id].name] == "ready"
                    name = self.specs[id].name
                    if not any(self.specs[other].name == name for other in self.running):
                        self.heard[name] = self.now
                    self.open.remove(id)
                    self.running.add(id)
                case Fail(id, error):
                    assert id in self.running and id not in self.cancelled | self.failed
                    if isinstance(error, TimedOut):
                        assert self.now >= self.arrived[id] + REQUEST_TIMEOUT
                    else:
                        assert self.silent(self.specs[id].name)
                    self.failed.add(id)
                case KillWorker(name):
                    assert self.workers[name] == "ready" and self.silent(name)
                    live = self.running - self.cancelled - self.failed
                    assert not any(self.specs[id].name == name for id in live)
                    self.workers[name] = "stopping"
                case CancelRunning(id):
                    assert id in self.running and id not in self.cancelled
                    self.cancelled.add(id)
                case Loaded(id):
                    assert self.workers[self.specs[id].name] == "ready"
                    self.open.remove(id)
                case Reject(id, _):
                    assert (id in self.open) != (id in self.running)
                    self.open.discard(id)
                    self.running.discard(id)

    def arrive(self, spec: ModelSpec) -> str:
        self.ids += 1
        id = str(self.ids)
        self.specs[id] = spec
        self.arrived[id] = self.now
        self.open.add(id)
        return id

    @rule(
        name=NAMES,
        keep_alive=KEEP_ALIVES,
        slots=st.integers(1, 2),
        identity=st.sampled_from(["x", "x", "x", "y"]),
        load=st.booleans(),
    )
    def ask(self, name: str, keep_alive: float, slots: int, identity: str, load: bool) -> None:
        spec = made_spec(name, n_slots=slots, keep_alive=keep_alive, identity=identity)
        event = self.scheduler.on_load if load else self.scheduler.on_request
        self.carry_out(event(self.arrive(spec), spec, self.now))

    @precondition(lambda self: "loading" in self.workers.values())
    @rule(data=st.data())
    def ready(self, data: st.DataObject) -> None:
        loading = sorted(n for n, phase in self.workers.items() if phase == "loading")
        self.become_ready(data.draw(st.sampled_from(loading)))

    def become_ready(self, name: str) -> None:
        self.workers[name] = "ready"
        self.carry_out(self.scheduler.on_worker_ready(name, self.now))

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def exit(self, data: st.DataObject) -> None:
        self.end_worker(data.draw(st.sampled_from(sorted(self.workers))))

    def end_worker(self, name: str) -> None:
        del self.workers[name]
        self.carry_out(self.scheduler.on_worker_exit(name, "gone", self.now))
        assert not any(
            self.specs[id].name == name for id in self.running if name not in self.workers
        )

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.end_request(data.draw(st.sampled_from(sorted(self.running))))

    def end_request(self, id: str) -> None:
        self.running.remove(id)
        self.carry_out(self.scheduler.on_finished(id, self.now))

    @precondition(lambda self: self.open or self.running)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.open | self.running)))
        self.open.discard(id)
        self.carry_out(self.scheduler.on_cancel(id, self.now))

    def silent(self, name: str) -> bool:
        return self.now >= self.heard[name] + DECODE_TIMEOUT

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def speak(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.workers)))
        self.heard[name] = self.now
        self.scheduler.on_message(name, self.now)

    @rule(name=NAMES)
    def unload(self, name: str) -> None:
        self.carry_out(self.scheduler.on_unload(name, self.now))

    @rule(seconds=st.integers(0, 4))
    def tick(self, seconds: int) -> None:
        self.now += seconds
        self.carry_out(self.scheduler.tick(self.now))
        late = {id for id, at in self.arrived.items() if self.now >= at + REQUEST_TIMEOUT}
        assert not late & self.open
        assert late & self.running <= self.cancelled | self.failed
        for name in {self.specs[id].name for id in self.running}:
            assert self.workers[name] == "stopping" or not self.silent(name)

    @invariant()
    def bounds_hold(self) -> None:
        assert len(self.workers) <= MAX_LOADED
        for worker in self.scheduler.workers():
            mine = {id for id in self.running if self.specs[id].name == worker.spec.name}
            assert mine == worker.running
            assert len(mine) <= worker.spec.load.n_slots
        assert len(self.open) <= 6
        deadline = self.scheduler.next_deadline()
        assert deadline is None or deadline > self.now

    def teardown(self) -> None:
        """Let everything in flight come to its end: then nothing may be left waiting."""
        for _ in range(200):
            if loading := [n for n, phase in self.workers.items() if phase == "loading"]:
                self.become_ready(loading[0])
            elif stopping := [n for n, phase in self.workers.items() if phase == "stopping"]:
                self.end_worker(stopping[0])
            elif self.running:
                self.end_request(min(self.running, key=int))
        assert not self.open and not self.running, repr(self.scheduler)
        assert set(self.workers.values()) <= {"ready"}
        assert repr(self.scheduler).endswith("waiting 0>")


TestWorld = World.TestCase
TestWorld.settings = settings(max_examples=150, stateful_step_count=40)
