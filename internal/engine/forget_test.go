package engine

import (
	"fmt"
	"testing"
	"time"
)

// remembering returns an engine's memory with leases and denials of n keys, each with the counters a and b.
func remembering(n int) *Engine {
	e := new(Engine)
	e.cache.init()
	e.leases.init()
	generations := e.cache.generations()
	for i := range n {
		for _, name := range []string{"a", "b"} {
			l := Limit{CounterID: CounterID{fmt.Sprint("k", i), name}, Limit: 1, Window: Window{Millis: 3_600_000, text: "1h"}}
			var s State
			s.advance(&l, time.Now().UnixMilli())
			e.cache.put(newCachedCounter(&l, &s), true, &generations)
			e.leases.add(e.leases.shard(l.CounterID), l.CounterID)
		}
	}
	return e
}

// TestForgetDropsWhatItNames, and nothing else.
func TestForgetDropsWhatItNames(t *testing.T) {
	t.Parallel()
	for what, want := range map[Forget]string{
		{Key: "k1", Name: "a"}: "k1 a",
		{Key: "k1", Name: "c"}: "",
		{Key: "k1"}:            "k1 a, k1 b",
		{Prefix: "k1"}:         "k1 a, k1 b, k10 a, k10 b, k11 a, k11 b",
		{Key: "other"}:         "",
	} {
		for _, freed := range []bool{false, true} {
			what.Freed = freed
			e, forgotten := remembering(12), ""
			e.Forget(what)
			for _, key := range []string{"k0", "k1", "k10", "k11", "k2"} {
				for _, name := range []string{"a", "b"} {
					id := CounterID{key, name}
					denied := e.cache.shards[e.cache.shardIndex(id)].entries[id] != nil
					if ended := e.leases.shard(id).entries[id].ended; ended != (!denied && !freed) {
						t.Errorf("%+v: the lease of %+v has ended %t, its denial is remembered %t", what, id, ended, denied)
					}
					if !denied {
						if forgotten != "" {
							forgotten += ", "
						}
						forgotten += key + " " + name
					}
				}
			}
			if forgotten != want {
				t.Errorf("%+v: forgotten are %q, want %q", what, forgotten, want)
			}
		}
	}
}

// TestNamesAreKnownAsLongAsTheirCounters: a counter that is remembered again counts once, and one that is dropped not at all.
func TestNamesAreKnownAsLongAsTheirCounters(t *testing.T) {
	t.Parallel()
	e := remembering(12)
	generations := e.cache.generations()
	for i := range e.cache.shards {
		for _, m := range e.cache.shards[i].entries {
			e.cache.put(newCachedCounter(&m.ownDenials.limit, &m.state), true, &generations)
		}
	}
	known := func() (denials, leases int) {
		for i := range shardCount {
			for _, n := range e.cache.shards[i].names {
				denials += n
			}
			for _, n := range e.leases.shards[i].names {
				leases += n
			}
		}
		return denials, leases
	}
	if denials, leases := known(); denials != 24 || leases != 24 {
		t.Errorf("%d names of denials and %d of leases, want 24", denials, leases)
	}
	e.Forget(Forget{All: true})
	e.leases.takeExpired(time.Now().Add(idleFor), nil, false)
	if denials, leases := known(); denials != 0 || leases != 0 {
		t.Errorf("%d names of denials and %d of leases, want none", denials, leases)
	}
}

// BenchmarkForget measures what each refund, and each reset of a key or prefix, asks of every worker, on the goroutine that
// reads requests.
func BenchmarkForget(b *testing.B) {
	for _, keys := range []int{100, 30_000} {
		e := remembering(keys)
		for name, what := range map[string]Forget{
			"counter": {Key: "other", Name: "a"}, "key": {Key: "other"}, "prefix": {Prefix: "other"},
		} {
			b.Run(fmt.Sprint(name, " of ", keys, " keys"), func(b *testing.B) {
				for b.Loop() {
					e.Forget(what)
				}
			})
		}
	}
}
