package storetest

import (
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/seed503877ad/limits/internal/engine"
)

const (
	past   = 1_000_000_000_000
	future = 4_000_000_000_000
)

// expiringAt makes a decision set the expiry of its counters.
func expiringAt(expires int64, decide func(engine.Snapshot) engine.Changes) func(engine.Snapshot) engine.Changes {
	return func(snap engine.Snapshot) engine.Changes {
		c := decide(snap)
		for i := range c.Counters {
			c.Counters[i].ExpiresAt = expires
		}
		return c
	}
}

func expire(t *testing.T, s Store, max, want int) {
	t.Helper()
	n, err := s.Expire(within(t), max)
	if err != nil {
		t.Fatalf("expire: %v", err)
	}
	equal(t, "removed", n, want)
}

func onlyExpired(t *testing.T, s Store) {
	expire(t, s, 10, 0)
	ids := numbered(4)
	named := engine.Batch{Counters: ids, IDs: []string{"past", "stays"}}
	update(t, s, named, func(snap engine.Snapshot) engine.Changes {
		c := write("1")(snap)
		for i, at := range []int64{past, snap.Now, snap.Now + 3_600_000, future} {
			c.Counters[i].ExpiresAt = at
		}
		c.Receipts = []engine.Receipt{receipt("past"), receipt("stays")}
		c.Receipts[0].ExpiresAt = snap.Now
		return c
	})
	expire(t, s, 10, 3)
	expire(t, s, 10, 0)
	equal(t, "states", states(t, s, ids...), []string{"-", "-", "1", "1"})
	update(t, s, named, func(snap engine.Snapshot) engine.Changes {
		equal(t, "receipts", []bool{snap.Receipts[0] != nil, snap.Receipts[1] != nil}, []bool{false, true})
		return engine.Changes{}
	})
}

func expireMax(t *testing.T, s Store) {
	ids := numbered(5)
	update(t, s, batch(ids...), func(snap engine.Snapshot) engine.Changes {
		c := write("1")(snap)
		for i := range ids {
			c.Counters[i].ExpiresAt = past - int64(i)
			r := receipt(fmt.Sprint(i))
			r.ExpiresAt = past - int64(i)
			c.Receipts = append(c.Receipts, r)
		}
		return c
	})
	expire(t, s, 2, 4)
	// Read without locking them, since the next Expire would skip locked rows.
	if left := list(t, s, "", engine.CounterID{}, 10); len(left) != 3 || left[2].CounterID != ids[2] {
		t.Errorf("left: %v; want the three that expired last", left)
	}
	update(t, s, engine.Batch{IDs: []string{"0", "1", "2", "3", "4"}}, func(snap engine.Snapshot) engine.Changes {
		var left []bool
		for _, r := range snap.Receipts {
			left = append(left, r != nil)
		}
		equal(t, "receipts that are left", left, []bool{true, true, true, false, false})
		return engine.Changes{}
	})
	expire(t, s, 2, 4)
	expire(t, s, 2, 2)
	expire(t, s, 2, 0)
}

// chargedAndExpired adds to counters that have always expired, while they are removed. If no charge
// is lost, then for each counter a value was written at most as often as the value below it (less
// often if the counter was removed in between), and each counter that was created and is gone was
// counted as removed.
func chargedAndExpired(t *testing.T, s Store) {
	const workers, rounds = 4, 40
	ids := numbered(5)
	var mu sync.Mutex
	wrote := make([]map[int]int, len(ids)) // how often each value was written
	for i := range wrote {
		wrote[i] = map[int]int{}
	}
	removed := expireWhile(t, s, workers, func(int) error {
		for range rounds {
			var saw []string
			err := retry(within(t), s, batch(ids...), func(snap engine.Snapshot) engine.Changes {
				saw = texts(snap)
				return expiringAt(past, add)(snap)
			})
			if err != nil {
				return err
			}
			mu.Lock()
			for i := range saw {
				n, _ := strconv.Atoi(saw[i])
				wrote[i][n+1]++
			}
			mu.Unlock()
		}
		return nil
	})
	made := 0
	for i, state := range states(t, s, ids...) {
		made += wrote[i][1]
		if state != "-" {
			made--
		}
		for value, n := range wrote[i] {
			if value > 1 && n > wrote[i][value-1] {
				t.Errorf("counter %d was set to %d %d times, and to %d %d times", i, value, n, value-1, wrote[i][value-1])
			}
		}
	}
	equal(t, "removed", removed, made)
}

// renewedAndExpired charges each expired counter once, so that it expires later, while expired ones
// are removed.
func renewedAndExpired(t *testing.T, s Store) {
	const workers, each = 4, 50
	ids := numbered(workers * each)
	update(t, s, batch(ids...), expiringAt(past, write("1")))
	removed := expireWhile(t, s, workers, func(w int) error {
		for _, id := range ids[w*each : (w+1)*each] {
			if err := retry(within(t), s, batch(id), expiringAt(future, add)); err != nil {
				return err
			}
		}
		return nil
	})
	anew := 0
	for i, state := range states(t, s, ids...) {
		switch state {
		case "1":
			anew++
		case "2":
		default:
			t.Errorf("counter %d is %s", i, state)
		}
	}
	equal(t, "removed", removed, anew)
}

// expireWhile runs f for every number below n concurrently. Meanwhile and once afterwards it
// removes what has expired, a few at a time.
func expireWhile(t *testing.T, s Store, n int, f func(i int) error) (removed int) {
	t.Helper()
	ended := make(chan struct{})
	total := make(chan int)
	go func() {
		sum := 0
		for last := false; ; {
			got, err := s.Expire(within(t), 3)
			if err != nil {
				t.Errorf("expire: %v", err)
			}
			sum += got
			if last {
				break
			}
			select {
			case <-ended:
				last = true
			default:
			}
		}
		total <- sum
	}()
	concurrently(t, n, f)
	close(ended)
	return <-total
}
