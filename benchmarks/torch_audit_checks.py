"""Every check of torch-audit 0.3.0, and of the README of its first version, and what answers it."""

from __future__ import annotations

from dataclasses import dataclass

# Ids of release 0.3.0: what each is about.
RELEASE = {
    "TA000": "an internal check failed",
    "TA100": "NaN or infinity in parameters or gradients",
    "TA102": "the norm of all gradients is large",
    "TA103": "the gradient of a parameter is zero",
    "TA104": "no parameter has a gradient",
    "TA105": "results of an activation are nearly all zero",
    "TA200": "sizes that tensor cores cannot use fully",
    "TA201": "convolutions stored channels-first",
    "TA202": "a model off, or partly off, the GPU",
    "TA203": "nearly all parameters are float32",
    "TA300": "inputs on another device than the model",
    "TA301": "inputs with large values",
    "TA302": "inputs without variation",
    "TA303": "images with channels last",
    "TA304": "a small batch in front of a batch norm",
    "TA305": "negative ids or labels",
    "TA400": "a bias in front of a norm",
    "TA401": "Adam with weight decay",
    "TA402": "weight decay of biases and norms",
    "TA403": "weight decay of embeddings",
    "TA404": "even kernels",
    "TA405": "filters of zeros",
    "TA500": "layers that are not used",
    "TA501": "a batch norm used twice in a forward",
}

# The checks of the first README have no ids; these are numbers of this page.
OLDER = {
    "1": "sizes that are no multiple of 8",
    "2": "sizes that are no multiple of 16",
    "3": "no convolution is stored channels-last",
    "4": "nearly all parameters are float32",
    "5": "a model on two devices",
    "6": "a model on the CPU beside a GPU",
    "7": "Adam with weight decay",
    "8": "weight decay of biases",
    "9": "weight decay of norms",
    "10": "weight decay of embeddings",
    "11": "an eps that is too small for half precision",
    "12": "a small batch in front of a batch norm",
    "13": "NaN or infinity in a batch",
    "14": "negative ids or labels",
    "15": "float inputs with large values",
    "16": "results of an activation are nearly all zero",
    "17": "layers that are not used",
    "18": "a batch norm used twice in a forward",
    "19": "a layer used twice in a forward (no fault: structure)",
    "20": "no parameter has a gradient",
    "21": "the norm of all gradients is NaN or infinite",
    "22": "the norm of all gradients is large",
    "23": "the norm of all gradients is zero",
    "24": "an embedding without padding_idx",
    "25": "padding_idx is not the padding id",
    "26": "embedding and output layer are not tied",
    "27": "the attention mask does not fit the padding",
    "28": "batches that are mostly padding",
    "29": "many unknown tokens",
    "30": "ids beyond the vocabulary",
    "31": "images with values of bytes",
    "32": "images without variation",
    "33": "images with channels last",
    "34": "even kernels",
    "35": "filters of zeros",
    "36": "a bias in front of a norm",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """The published threshold of a check, and the corresponding option of traincheck.

    why: where our default is another, or there is no option.
    """

    published: str
    code: str
    option: str = ""
    why: str = ""


_SHARE_OF_UNITS = "of units that are off for every sample; theirs of zeros, also of living units"
_FILTERS = "a norm below 1e-6 is taken as zero while recording"
_NORM = "beside 100 times the median of the run: a norm that is always large is no explosion"

THRESHOLDS = {
    "TA102": Threshold(published="norm > 100", code="TC702", option="floor", why=_NORM),
    "TA105": Threshold(published="> 90 %", code="TC705", option="share", why=_SHARE_OF_UNITS),
    "TA200": Threshold(published="8, then 16", code="TC901", option="multiple"),
    "TA203": Threshold(published="> 90 %", code="TC903", option="share"),
    "TA301": Threshold(published="> 50", code="TC918", option="bright"),
    "TA302": Threshold(published="std < 1e-5", code="TC919", option="spread"),
    "TA303": Threshold(published=">= 32", code="TC920", option="smallest"),
    "TA304": Threshold(published="< 8", code="TC914", option="samples"),
    "TA405": Threshold(published="norm < 1e-6", code="TC714", option="share", why=_FILTERS),
    "1": Threshold(published="8", code="TC901", option="multiple"),
    "2": Threshold(published="16", code="TC901", option="multiple"),
    "4": Threshold(published="> 90 %", code="TC903", option="share"),
    "11": Threshold(published="< 1e-7", code="TC803", why="what float16 rounds to zero, 2**-25"),
    "12": Threshold(published="< 8", code="TC914", option="samples"),
    "15": Threshold(published="> 10", code="TC918", option="bright", why="50 in 0.3.0"),
    "16": Threshold(published="> 90 %", code="TC705", option="share", why=_SHARE_OF_UNITS),
    "22": Threshold(published="norm > 10", code="TC702", option="floor", why="100 in 0.3.0"),
    "24": Threshold(published=">= 100 rows", code="TC910", option="rows"),
    "26": Threshold(published="> 1000 rows", code="TC917", option="rows"),
    "28": Threshold(published="> 50 %", code="TC913", option="share"),
    "29": Threshold(published="> 5 %", code="TC916", option="share"),
    "31": Threshold(published="> 50", code="TC918", option="bright"),
    "32": Threshold(published="std < 1e-4", code="TC919", option="spread", why="1e-5 in 0.3.0"),
    "33": Threshold(published=">= 32", code="TC920", option="smallest"),
    "35": Threshold(published="norm < 1e-6", code="TC714", option="share", why=_FILTERS),
}
