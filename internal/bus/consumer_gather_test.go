package bus

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// pendingMsg is a message after which so many are left in the stream.
type pendingMsg struct {
	jetstream.Msg
	left uint64
}

func (m pendingMsg) Metadata() (*jetstream.MsgMetadata, error) {
	return &jetstream.MsgMetadata{NumPending: m.left}, nil
}

// TestBatchesOfABacklogAreGathered: the store may be far away, so what is on its way from the stream is taken at once, and
// not the first few before the rest. But a message that has none behind it does not wait, and nobody waits long.
func TestBatchesOfABacklogAreGathered(t *testing.T) {
	t.Parallel()
	const most = 256
	for name, c := range map[string]struct {
		// left is what is in the stream after the first message.
		left uint64
		// arrive is how many arrive in all, 3 ms after one another, and ends that the pull ends then.
		arrive int
		ends   bool
		want   int
		within time.Duration
	}{
		"a message alone":                           {0, 1, false, 1, 0},
		"the last two":                              {1, 2, false, 2, 3 * time.Millisecond},
		"what comes after the last has to wait":     {2, 5, false, 3, 6 * time.Millisecond},
		"the pull ends":                             {1000, 5, true, 5, 12 * time.Millisecond},
		"the others are delivered to other workers": {1000, 3, false, 3, gatherTime},
		"they come too slowly":                      {1000, 50, false, 7, gatherTime},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				pull := make(chan jetstream.Msg, 500)
				h := newHand(pull, time.Now(), time.Hour)
				sent := make(chan struct{})
				defer func() { <-sent }()
				go func() {
					defer close(sent)
					for n := range c.arrive {
						if n > 0 {
							<-time.After(3 * time.Millisecond)
						}
						pull <- pendingMsg{left: c.left - min(c.left, uint64(n))}
					}
					if c.ends {
						close(pull)
					}
				}()
				began := time.Now()
				got := len(h.next(most))
				if took := time.Since(began); got != c.want || took != c.within {
					t.Errorf("%d messages after %s, want %d after %s", got, took, c.want, c.within)
				}
			})
		})
	}
}

// TestAFullBatchIsNotWaitedFor, whatever is left in the stream.
func TestAFullBatchIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pull := make(chan jetstream.Msg, 8)
		for range 8 {
			pull <- pendingMsg{left: 100}
		}
		h := newHand(pull, time.Now(), time.Hour)
		began := time.Now()
		for range 2 {
			if got, took := len(h.next(4)), time.Since(began); got != 4 || took > 0 {
				t.Errorf("%d messages after %s, want 4 at once", got, took)
			}
		}
	})
}

// TestABatchThatBecomesFullIsNotHeldUp: it is handled when the last message for it has come, although more are on their way.
func TestABatchThatBecomesFullIsNotHeldUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pull := make(chan jetstream.Msg, 8)
		go func() {
			for range 3 {
				time.Sleep(3 * time.Millisecond)
				pull <- pendingMsg{left: 100}
			}
		}()
		h := newHand(pull, time.Now(), time.Hour)
		began := time.Now()
		if got, took := len(h.next(3)), time.Since(began); got != 3 || took != 9*time.Millisecond {
			t.Errorf("%d messages after %s, want 3 after 9ms", got, took)
		}
	})
}
