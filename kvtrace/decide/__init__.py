"""May it go out: useful goodput, answers lost, capacity and the way back, by limits written beforehand."""
