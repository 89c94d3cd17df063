"""Names of the variables that a run records besides its metrics."""

#: Attributes with the least and the greatest possible value of a metric.
BOUNDS = ("least", "greatest")


#: Counts since the last record, as ``[high, low]`` in compiled programs (`fljax.link.wide`).
COUNTS = ("messages", "scalars", "bits_up", "bits_down")


#: Variables with the communication so far: the counts, and the bits of both directions.
TRAFFIC = (*COUNTS, "bits")


#: Variables with the computation of clients so far, counted in the traced program of a round.
COMPUTED = ("gradients", "proximal")


#: Variables of runs on a clock.
TIMES = ("seconds", "joules")


#: Variables that can be the x axis of curves, besides rounds and seconds.
EFFORTS = (*TRAFFIC, *COMPUTED, "joules")


#: Variables that are recorded once a run instead of in every recorded round.
PER_RUN = (
    *("diverged", "gradient_norm", "gradient_bound", "promised_bound", "nominal", "exact_model"),
    *("rounding", "release_rho", "unusable_samples", "gaussian_noise", "clipped"),
    "connected",
    "same_objective",
    *("in_time", "stood_still", "miscounted", "fastest_seconds"),
    *("first_step", "step_bound"),
    *("noise_multiplier", "sampling_rate", "drawn_from", "update_clip"),
    *("label_distance", "effective_classes", "size_variation", "largest_share", "holders"),
)


#: Variables that are recorded once a run for every client: its privacy ledger, and its number of
#: samples where a partition is drawn; on a clock, its times and energy.
PER_CLIENT = (
    *("client_rho", "client_epsilon", "client_delta", "client_releases", "client_samples"),
    *("client_busy_seconds", "client_idle_seconds", "client_joules"),
)


#: Variables that are recorded once a run for every client and class.
PER_CLASS = ("label_counts",)


#: Variables with the networks' states at the end of a run: their average, and of every client.
PER_STATISTIC = ("network_state", "client_network_state")


#: Names that axes and metrics must not have: names of every result's axes and variables, and
#: keywords of xarray's ``sel``, which a dimension of that name hides.
RESERVED = (
    *("seed", "round", "client", "class", "parameter", "method", "tolerance", "drop"),
    *("model", "done", "stopped", *PER_RUN, *PER_CLIENT, *PER_CLASS, *PER_STATISTIC, *EFFORTS),
    *TIMES,
)
