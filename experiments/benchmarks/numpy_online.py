"""Asynchronous online learning in NumPy, vectorized over clients with care: the rival of fljax.

As in fljax, only clients with a sample are updated, only senders' messages are computed, only
shared parameters are exchanged, messages in flight are stored as sums per arrival round, and
unused features are not computed. float32 throughout.
"""

from typing import NamedTuple

import numpy as np

SINGLE = np.float32


class Setting(NamedTuple):
    """Sizes and laws of figure 4.3(a)."""

    clients: int
    dim: int
    rounds: int
    rates: np.ndarray  # [K] of arrival
    available: np.ndarray  # [K]
    bandwidth: float
    delta: float
    longest: int
    test: int
    record_every: int


class Data:
    """One run's streams, features, participation and delays."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.rng = rng = np.random.Generator(np.random.SFC64(seed))
        k = setting.clients
        self.setting = setting
        self.omega = rng.normal(0, 1 / setting.bandwidth, (4, setting.dim)).astype(SINGLE)
        self.phase = rng.uniform(0, 2 * np.pi, setting.dim).astype(SINGLE)
        self.theta = rng.uniform(0.2, 0.9, k).astype(SINGLE)
        self.mean = rng.uniform(-0.2, 0.2, k).astype(SINGLE)
        self.spread = np.sqrt(rng.uniform(0.2, 1.2, k)).astype(SINGLE)
        self.noise = np.sqrt(rng.uniform(0.005, 0.03, k)).astype(SINGLE)
        self.gain = np.sqrt(1 - self.theta**2)
        self.recent = self._history(np.arange(k))
        clients = rng.integers(0, k, setting.test)
        inputs = self._history(clients)[:, [0, 1, 4, 3]]
        self.test = self.features(inputs)
        self.answers = self.target(inputs) + self.noise[clients] * rng.standard_normal(
            setting.test, SINGLE
        )

    def _history(self, clients: np.ndarray) -> np.ndarray:
        theta, gain, mean, spread = (
            a[clients] for a in (self.theta, self.gain, self.mean, self.spread)
        )
        draw = self.rng.standard_normal((5, len(clients)), SINGLE)
        x = mean * gain / (1 - theta) + spread * draw[0]
        rows = [x]
        for innovation in draw[1:]:
            x = theta * x + gain * (mean + spread * innovation)
            rows.append(x)
        return np.stack(rows[::-1], axis=1)

    @staticmethod
    def target(x: np.ndarray) -> np.ndarray:
        first = np.sqrt(x[:, 0] ** 2 + np.sin(np.pi * x[:, 3]) ** 2)
        return first + (0.8 - 0.5 * np.exp(-(x[:, 1] ** 2)) * x[:, 2])

    def features(self, inputs: np.ndarray) -> np.ndarray:
        angle = inputs @ self.omega
        angle += self.phase
        np.cos(angle, out=angle)
        angle *= SINGLE(np.sqrt(2 / self.setting.dim))
        return angle

    def arrive(self) -> np.ndarray:
        """Move all streams on; the clients that get a sample."""
        k = self.setting.clients
        draw = self.rng.standard_normal((2, k), SINGLE)
        newest = self.theta * self.recent[:, 0] + self.gain * (self.mean + self.spread * draw[0])
        self.recent = np.concatenate([newest[:, None], self.recent[:, :-1]], axis=1)
        self.observation = self.noise * draw[1]
        self.here = self.rng.random(k, SINGLE) < self.setting.available
        return np.flatnonzero(self.rng.random(k, SINGLE) < self.setting.rates)

    def samples(self, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        inputs = self.recent[clients][:, [0, 1, 4, 3]]
        return self.features(inputs), self.target(inputs) + self.observation[clients]

    def lags(self, count: int) -> np.ndarray:
        uniform = 1 - self.rng.random(count, SINGLE)
        return np.floor(np.log(uniform) / np.log(self.setting.delta)).astype(int)

    def error(self, model: np.ndarray) -> float:
        return float(np.mean((self.test @ model - self.answers) ** 2))


class Line:
    """Sums of the messages in flight, by arrival round."""

    def __init__(self, setting: Setting) -> None:
        self.total = np.zeros((setting.longest + 1, setting.dim), SINGLE)
        self.share = np.zeros_like(self.total)
        self.weight = np.zeros(setting.longest + 1, SINGLE)

    def take(self, n: int) -> tuple[np.ndarray, np.ndarray, float]:
        slot = n % len(self.total)
        result = self.total[slot].copy(), self.share[slot].copy(), self.weight[slot]
        self.total[slot] = 0
        self.share[slot] = 0
        self.weight[slot] = 0
        return result


def online_fed(setting: Setting, seed: int, step: float, fraction: float = 1.0) -> list[float]:
    """Online-Fed, pooled over arrivals; Online-FedSGD at a fraction of one."""
    data = Data(setting, seed)
    line = Line(setting)
    model = np.zeros(setting.dim, SINGLE)
    errors = []
    for n in range(1, setting.rounds + 1):
        arrived = data.arrive()
        active = arrived[data.here[arrived]]
        if fraction < 1:
            active = active[data.rng.random(len(active)) < fraction]
        if len(active):
            z, y = data.samples(active)
            local = model + step * (y - z @ model)[:, None] * z
            lag = data.lags(len(active))
            for late in np.unique(lag):
                if late <= setting.longest:
                    delayed = lag == late
                    slot = (n + late) % (setting.longest + 1)
                    line.total[slot] += local[delayed].sum(0)
                    line.weight[slot] += delayed.sum()
        total, _, weight = line.take(n)
        if weight:
            model = total / weight
        if n % setting.record_every == 0:
            errors.append(data.error(model))
    return errors


def partial_sharing(
    setting: Setting,
    seed: int,
    step: float,
    size: int,
    discount: float = 1.0,
    coordinated: bool = False,
    pooled: bool = False,
    fraction: float = 1.0,
) -> list[float]:
    """PAO-Fed, variants 1 and 2; pooled and with a fraction of the clients PSO-Fed."""
    data = Data(setting, seed)
    line = Line(setting)
    k = setting.clients
    dim = setting.dim
    model = np.zeros(dim, SINGLE)
    local = np.zeros((k, dim), SINGLE)
    errors = []
    offset = np.zeros(k, int) if coordinated else size * np.arange(k)
    window = np.arange(size)
    for n in range(1, setting.rounds + 1):
        arrived = data.arrive()
        active = arrived[data.here[arrived]]
        if fraction < 1:
            active = active[data.rng.random(len(active)) < fraction]
        if len(active):
            portion = (size * n + offset[active][:, None] + window) % dim
            local[active[:, None], portion] = model[portion]
        if len(arrived):
            z, y = data.samples(arrived)
            arrived_models = local[arrived]
            z *= (SINGLE(step) * (y - np.einsum("kd,kd->k", arrived_models, z)))[:, None]
            arrived_models += z
            local[arrived] = arrived_models
        if len(active):
            portion = (size * (n + 1) + offset[active][:, None] + window) % dim
            values = local[active[:, None], portion]
            lag = data.lags(len(active))
            for late in np.unique(lag):
                if late > setting.longest:
                    continue
                chosen = lag == late
                # A ring buffer of arrival rounds; `bincount` sums faster than `np.add.at`.
                slot = (n + late) % (setting.longest + 1)
                at = portion[chosen].ravel()
                count = chosen.sum()
                total = np.bincount(at, values[chosen].ravel(), dim).astype(SINGLE)
                share = np.bincount(at, minlength=dim).astype(SINGLE)
                weight = SINGLE(discount**late if pooled else discount**late / count)
                if pooled:
                    line.total[slot] += weight * total
                    line.share[slot] += weight * share
                    line.weight[slot] += count
                else:
                    covered = share > 0  # the fresher class takes the place of the older ones
                    line.total[slot, covered] = weight * total[covered]
                    line.share[slot, covered] = weight * share[covered]
        total, share, weight = line.take(n)
        change = total - share * model
        model = model + (change / max(weight, 1) if pooled else change)
        if n % setting.record_every == 0:
            errors.append(data.error(model))
    return errors
