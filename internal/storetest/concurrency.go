package storetest

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/seed503877ad/limits/internal/engine"
)

// add adds one to every counter of a batch.
func add(snap engine.Snapshot) (c engine.Changes) {
	for i, state := range snap.States {
		n, _ := strconv.Atoi(string(state))
		c.Counters = append(c.Counters, change(snap, i, strconv.Itoa(n+1)))
	}
	return c
}

// serialized has two transactions decide at the same time, if the store lets them: one of them must
// have seen what the other wrote.
func serialized(t *testing.T, s Store) {
	a := id("a", "1m")
	update(t, s, batch(a), write("0"))
	deciding, started := make(chan struct{}), make(chan struct{})
	decides := sync.OnceFunc(func() { close(deciding) })
	var saw [2]string // by the last call of decide
	concurrently(t, 2, func(i int) error {
		if i == 1 {
			<-deciding
			close(started)
		}
		return s.Update(within(t), batch(a), func(snap engine.Snapshot) engine.Changes {
			if i == 0 {
				decides()
				<-started // the other one has started
			}
			saw[i] = string(snap.States[0])
			return write(strconv.Itoa(i + 1))(snap)
		})
	})
	got := fmt.Sprintf("saw %v, left %v", saw, states(t, s, a))
	if got != "saw [0 1], left [2]" && got != "saw [2 0], left [1]" {
		t.Errorf("%s: neither came after the other", got)
	}
}

// overlappingBatches writes batches that share stored and new counters, with different first and
// last ones.
func overlappingBatches(t *testing.T, s Store) {
	const workers, rounds, size = 8, 15, 40
	ids := numbered(100)
	update(t, s, batch(ids[20:80]...), write("0"))
	concurrently(t, workers, func(w int) error {
		for r := range rounds {
			var some []engine.CounterID
			for i := range size {
				some = append(some, ids[(w*37+r*13+i*7)%len(ids)])
			}
			slices.SortFunc(some, engine.CounterID.Compare)
			some = slices.Compact(some)
			if err := retry(within(t), s, batch(some...), add); err != nil {
				return fmt.Errorf("worker %d: %w", w, err)
			}
		}
		return nil
	})
	sum := 0
	for _, state := range states(t, s, ids...) {
		n, _ := strconv.Atoi(state)
		sum += n
	}
	equal(t, "sum", sum, workers*rounds*size)
}

func concurrentCreates(t *testing.T, s Store) {
	const workers, rounds = 6, 20
	concurrently(t, workers, func(int) error {
		for r := range rounds {
			ids := numbered(r + 2)[r:] // the first one mostly stored, the second one mostly new
			if err := retry(within(t), s, batch(ids...), add); err != nil {
				return err
			}
		}
		return nil
	})
	got := states(t, s, numbered(rounds+1)...)
	for i, state := range got {
		want := 2 * workers
		if i == 0 || i == rounds {
			want = workers
		}
		equal(t, fmt.Sprintf("counter %d", i), state, strconv.Itoa(want))
	}
}

func receiptRace(t *testing.T, s Store) {
	const workers = 8
	a := id("a", "1m")
	b := engine.Batch{Counters: []engine.CounterID{a}, IDs: []string{"same"}}
	concurrently(t, workers, func(int) error {
		return retry(within(t), s, b, func(snap engine.Snapshot) engine.Changes {
			if snap.Receipts[0] != nil {
				return engine.Changes{}
			}
			c := add(snap)
			c.Receipts = []engine.Receipt{receipt("same")}
			return c
		})
	})
	equal(t, "charges", states(t, s, a), []string{"1"})
}

func updatesAndResets(t *testing.T, s Store) {
	ids := numbered(60)
	var mu sync.Mutex
	var removed int64
	concurrently(t, 6, func(w int) error {
		for range 10 {
			if w > 0 {
				if err := retry(within(t), s, batch(ids...), add); err != nil {
					return err
				}
				continue
			}
			n, err := s.Reset(within(t), engine.Selection{Prefix: "k:"}, false)
			if err != nil {
				return err
			}
			mu.Lock()
			removed += n
			mu.Unlock()
		}
		return nil
	})
	if removed%60 != 0 {
		t.Errorf("removed %d counters, which were written 60 at a time", removed)
	}
}
