"""What of the course itself refuses while an answer runs, whatever the subject: its own arithmetic, and its meter."""

from minigpt.checks.closing import knows
from minigpt.memory.families import Architecture
from minigpt.memory.measured import apart, step
from minigpt.memory.plan import Precision
from minigpt.memory.predicted.reserved import history
from minigpt.memory.predicted.run import run
from minigpt.memory.predicted.step import predict

knows(predict, run, history, step.measure, step.measure_module, step.compute_loss, apart.run_apart)
knows(records=(Architecture, Precision))
