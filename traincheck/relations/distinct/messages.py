"""Sentences of *distinct*: its claims, and what broke them."""

from __future__ import annotations

from traincheck.relations.distinct.repeats import (
    BATCHES,
    DATASET,
    DRAWS,
    EPOCH,
    EPOCHS,
    EVER,
    PARTS,
    RANKS,
    RESUMED,
    ROWS,
    STATES,
    STEPS,
    WORKERS,
)

TEXTS = {
    (BATCHES, EPOCH): "No batch of {what} repeats within an epoch",
    (BATCHES, EPOCHS): "The batches of {what} differ from those of the epoch before",
    (BATCHES, RANKS): "No batch of {what} goes to two ranks",
    (BATCHES, DATASET): "The batches of {what} are not drawn in the order of the dataset",
    (BATCHES, RESUMED): "When an epoch of {what} is resumed, no sample repeats",
    (BATCHES, ROWS): "No batch of {what} has the same sample in all its rows",
    (BATCHES, PARTS): "No sample of {what} goes to two ranks in an epoch",
    (DRAWS, WORKERS): "No two workers of an epoch begin with {what} in the same state",
    (DRAWS, EPOCHS): "No worker begins with {what} in a state of an earlier epoch",
    (DRAWS, EVER): "No two workers, even of different epochs, begin with {what} in the same state",
    (STATES, STEPS): "The random generator of {what} is never in a state of an earlier step",
}
# Likely cause, and what to do
CAUSES = {
    (BATCHES, EPOCH): (
        "Every worker of {loader} yields the whole dataset, or one batch is used again.",
        "Split an iterable dataset by get_worker_info(). Fetch a new batch in every iteration.",
    ),
    (BATCHES, EPOCHS): (
        "{loader} is shuffled with the same seed in every epoch: set_epoch() of its sampler is "
        "not called, or the generator is seeded again.",
        "Call sampler.set_epoch(epoch) before each epoch; seed once, before the first.",
    ),
    (BATCHES, RANKS): (
        "{loader} may have no DistributedSampler, so that every rank draws the same samples.",
        "Give the loader a DistributedSampler, or split the data by rank.",
    ),
    (BATCHES, DATASET): (
        "{loader} does not shuffle: a shuffle=True is missing, or a sampler.",
        "Pass shuffle=True to the DataLoader, unless the dataset is in random order.",
    ),
    (BATCHES, RESUMED): (
        "The generator of the sampler may not be restored, and the order of the epoch drawn again "
        "before its first batches were skipped.",
        "Restore the sampler's generator as it was when the epoch began, or seed it by epoch.",
    ),
    (BATCHES, ROWS): (
        "The dataset of {loader} may fill one buffer and return it for every index.",
        "Return a new tensor, or a copy, from __getitem__.",
    ),
    (BATCHES, PARTS): (
        "The samplers of the ranks may shuffle with different seeds, so that their parts overlap.",
        "Give the sampler of every rank the same seed, and set_epoch the same epoch.",
    ),
    (DRAWS, WORKERS): (
        "Workers of {loader} get copies of one generator, or are all seeded alike.",
        "Seed each worker by torch.initial_seed(), or create the generator in worker_init_fn.",
    ),
    (DRAWS, EPOCHS): (
        "Workers of {loader} may be seeded with numbers that do not depend on the epoch.",
        "Seed each worker by torch.initial_seed(), which differs from epoch to epoch.",
    ),
    (DRAWS, EVER): (
        "Workers of {loader} get copies of one generator, or are seeded with numbers that depend "
        "neither on the worker nor on the epoch.",
        "Seed each worker by torch.initial_seed(), which differs by worker and epoch.",
    ),
    (STATES, STEPS): (
        "The generator may be seeded again during training, such as by manual_seed() in the loop.",
        "Seed once, before training.",
    ),
}
