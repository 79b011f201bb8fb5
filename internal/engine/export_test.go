package engine

// Remembered is how many counters are remembered as exhausted and how many have denials counted in memory.
func (e *Engine) Remembered() (exhausted, denials int) {
	for i := range e.exhausted.shards {
		exhausted += len(e.exhausted.shards[i].known)
	}
	return exhausted, len(e.denials.pending)
}
