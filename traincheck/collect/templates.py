"""Templates of records: serialized JSON with slots. Names of fields are written here only.

A template is filled with ``%``: ``%d`` takes a number, ``%b`` takes serialized JSON. The fields are
those of the structs in schema/events.py; a test compares the two.
"""

from __future__ import annotations

# Position in the run: in all records, after ``k``, ``n`` and ``t``.
STEP_AND_STAGE = b'"s":%d,"g":"%b"'
STAGE_ALONE = b'"s":null,"g":"%b"'
NUMBER = b'"n":%d,'

# Complete records: number, time, the two above; then the other fields.
EVENT = b'{"k":"%b","n":%d,"t":%d,%b%b%b}\n'
STATE = b'{"k":"state","n":%d,"t":%d,%b,%b}\n'
STATE_HEAD = b'{"k":"state","n":%d,"t":%b,'
CALL_HEAD = b'{"k":"call","n":%d,"t":%d,%b,"id":%d,'
CALL_OUTSIDE = CALL_HEAD + b'"start":%d,'  # of any other call
CALL_IN_SPAN = CALL_HEAD + b'"parent":%d,"start":%d,'
CALL = CALL_OUTSIDE + b"%b}\n"
INNER_CALL = CALL_IN_SPAN + b"%b}\n"
SKIPPED_STEP = b'{"k":"step","n":%d,"t":%d,%b,"counters":%b,"recorded":false}\n'

# Fields of a step.
STEP = b'"counters":%b,%b'
RATES_AND_MODES = b'"lr":%b,"modes":%b'
NOT_RECORDED = b',"recorded":false'
DIGESTS = b',"digests":%b'
NOT_COMPLETE = b',"complete":false'

# Fields of calls.
BACKWARD = b'%b,"args":{%b},"where":%b'
OPTIMIZER_STEP = b'%b,"args":{%b},"result":%b,"where":%b'
ZERO_GRAD = b'%b,"args":%b,"where":%b'
MODULE_CALL = b'%b,"training":%b,"args":{%b},"result":%b%b'
MODULE_CALL_OF_ONE = b',"training":%b,"args":{"0":%b},"result":%b%b'
RESULT_IN_MODULE = b'%b,"module":%b,"training":%b'
WITH_PLACE = b'%b,"where":%b'
WITH_EXCEPTION = b'%b,"exception":"%b"'
EXCEPTION = b',"exception":"%b"'
NO_GRAD = b',"grad_enabled":false'
AUTOCAST = b',"autocast":'

# Fields of changes of variables.
CHANGE = b'%b,"change":"%b"%b'
CHANGE_WITH_SUMMARY = b'%b,"change":"%b","summary":%b%b%b%b}%b'
STORAGE = b',"storage":%d'
AFTER = b',"after":%d'

# Fields of batches, of random generators, of marks.
BATCH = b'%b,"index":%d,"leaves":{%b}'
SAMPLES = b',"samples":'
ROWS = b',"rows":{%b}'
TOKENS = b',"tokens":'
INDICES = b',"indices":%b,"drawn":%d'
GENERATOR_MOMENT = b'"source":"%b","change":"state","fingerprint":"%b","moment":"%b"'
KEPT_STATE = b',"state":"%b"'
GENERATOR_STATE = b'"source":"torch","change":"state","fingerprint":"%b"'
MARK = b'"text":"%b","data":%b'

# Fields that are appended to the summary of a value.
WITH_VALUE = b'%b,"value":%b}'
WITH_FINGERPRINT = b'%b,"fingerprint":"%b"}'
WITH_IDENTITY = b'%b,"identity":%d}'
FINGERPRINT = b',"fingerprint":"%b"'
STATS = b',"stats":%b'
SKETCH = b',"sketch":%b'
LATE_FINGERPRINT = b',"fingerprint":%b'
ZERO = b',"zero":true'
NOT_ZERO = b',"zero":false'
