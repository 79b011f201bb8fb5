package bus

import (
	"slices"
	"time"
)

// How far workers are from their servers. The time of an answer is that of the network, and how long
// the other worker took, which tells whether that one has too much to do.

// A worker measures every measureInterval how far it is, and says the least of measurementsKept: the
// others took longer because it was busy. So a way that has become longer is known after 10 s, which
// is as long as another worker decides beside one that seems slow.
const (
	measureInterval  = time.Second
	measurementsKept = 10
)

// measureDistance keeps what this worker says about its distance up to date.
func (l *lead) measureDistance() {
	if time.Now().Before(l.nextMeasure) {
		return
	}
	l.nextMeasure = time.Now().Add(measureInterval)
	if took, err := l.roundTrip(); err == nil {
		own := *l.own.Load()
		own.RoundTrip = int64(l.leastRoundTrip(took))
		l.own.Store(&own)
	}
}

// leastRoundTrip adds a measured round trip and returns the least of those that are kept.
func (l *lead) leastRoundTrip(took time.Duration) time.Duration {
	l.roundTrips = append(l.roundTrips[max(0, len(l.roundTrips)+1-measurementsKept):], took)
	return slices.Min(l.roundTrips)
}

// roundTrip measures the round trip to the server.
func (l *lead) roundTrip() (took time.Duration, err error) {
	began := time.Now()
	err = l.conn.FlushTimeout(l.cfg.times.timeout)
	return time.Since(began), err
}

// answerWait is how long to wait for an answer. A worker that is as far as this one would need two
// round trips for an answer if it needed no time.
func (l *lead) answerWait() time.Duration {
	return l.cfg.times.timeout + 2*time.Duration(l.own.Load().RoundTrip)
}

// withoutNetwork subtracts from the time of an answer what the network took: the question and the
// answer each travel between this worker and its server, and between the other one and its server. It
// returns 0 if that is unknown.
//
// The other one is believed to be as far as it says, up to the farthest that can be measured, and at
// least as far as this one: the server may have become slow for both, which the other one says late.
// If what it says is wrong, this worker does not notice that it is slow, but does notice that it
// hangs.
func (l *lead) withoutNetwork(took time.Duration, other rank) time.Duration {
	if took < l.cfg.times.prompt {
		return took
	}
	own, err := l.roundTrip()
	if err != nil {
		return 0
	}
	theirs := min(time.Duration(other.RoundTrip), l.cfg.times.timeout)
	return max(0, took-own-max(own, theirs))
}
