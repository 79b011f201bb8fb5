package engine_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
)

// coverCase is a request to a worker that has leases of hot and warmed: whether it is answered from memory, and what it charges
// to hot.
type coverCase struct {
	request engine.Request
	memory  bool
	charged int64
}

// coverCases makes the limits, each with a reference of its own or with none, and the requests.
func coverCases(t *testing.T, ref func() *engine.Ref) (hot, warmed engine.Limit, cases map[string]coverCase) {
	hot, warmed = leased(t, "hot", 1_000_000), leased(t, "warmed", 1_000_000)
	cold, exact, shadow, tier, warning := leased(t, "cold", 1_000_000), hot, hot, hot, hot
	exact.Leased, shadow.Shadow, tier.Limit, warning.Threshold = false, true, 2_000_000, 10
	for _, l := range []*engine.Limit{&hot, &warmed, &cold, &exact, &shadow, &tier, &warning} {
		l.Ref = ref()
	}
	all := func(ls ...engine.Limit) []engine.Limit { return ls }
	return hot, warmed, map[string]coverCase{
		"consume":                  {engine.Request{Limits: all(hot)}, true, 1},
		"check":                    {engine.Request{Verb: engine.Check, Limits: all(hot)}, true, 0},
		"check with an id":         {engine.Request{Verb: engine.Check, Limits: all(hot), ID: "x"}, true, 0},
		"consume of two leases":    {engine.Request{Limits: all(hot, warmed)}, true, 1},
		"check of two leases":      {engine.Request{Verb: engine.Check, Limits: all(hot, warmed)}, true, 0},
		"consume with another":     {engine.Request{Limits: all(hot, cold)}, false, 1},
		"check with another":       {engine.Request{Verb: engine.Check, Limits: all(hot, cold)}, false, 0},
		"consume after another":    {engine.Request{Limits: all(cold, hot)}, false, 1},
		"consume with an id":       {engine.Request{Limits: all(hot), ID: "x"}, false, 1},
		"record":                   {engine.Request{Verb: engine.Record, Limits: all(hot)}, false, 1},
		"refund":                   {engine.Request{Verb: engine.Refund, Limits: all(hot)}, false, -1},
		"consume that must be new": {engine.Request{Limits: all(exact)}, false, 1},
		"consume in shadow":        {engine.Request{Limits: all(shadow)}, false, 1},
		"consume of another tier":  {engine.Request{Limits: all(tier)}, false, 1},
		"consume that may warn":    {engine.Request{Limits: all(warning)}, false, 1},
	}
}

// TestALeaseAnswersWhatItCovers, and nothing else: the store decides the rest. In the end exactly what was asked for is charged.
func TestALeaseAnswersWhatItCovers(t *testing.T) {
	t.Parallel()
	for kind, ref := range map[string]func() *engine.Ref{
		"with reference":    func() *engine.Ref { return new(engine.Ref) },
		"without reference": func() *engine.Ref { return nil },
	} {
		_, _, names := coverCases(t, ref)
		for name := range names {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					hot, warmed, cases := coverCases(t, ref)
					testWhatALeaseAnswers(t, hot, warmed, cases[name])
				})
			})
		}
	}
}

func testWhatALeaseAnswers(t *testing.T, hot, warmed engine.Limit, c coverCase) {
	store := openTap(t)
	e := start(t, engine.Config{Store: store})
	warm(t, e, warmed)
	n := warm(t, e, hot)
	ask(t, e, engine.Request{Limits: []engine.Limit{hot}, Cost: 2}) // so that not all of the lease is given back
	before := store.count()
	if d := ask(t, e, c.request); !d.Allowed || (store.count() == before) != c.memory {
		t.Errorf("%d transactions; %+v", store.count()-before, d)
	}
	if c.request.ID != "" { // asked again, it charges nothing
		ask(t, e, c.request)
	}
	if err := e.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if used := usedNow(t, e, "hot"); used != n+2+c.charged {
		t.Errorf("%d used, and %d were charged", used, n+2+c.charged)
	}
}

// TestALeaseAnswersAsTheStoreWould: what it says of the counter is what a limit without leases says that was charged at the same
// times.
func TestALeaseAnswersAsTheStoreWould(t *testing.T) {
	t.Parallel()
	for _, a := range []engine.Algorithm{engine.SlidingWindow, engine.FixedWindow, engine.TokenBucket} {
		withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
			l := leased(t, "k", 1_000_000)
			l.Algorithm = a
			exact := l
			exact.Key, exact.Leased = "exact", false
			fromMemory := 0
			for i := range 300 {
				time.Sleep(3 * time.Millisecond)
				want := ask(t, e, engine.Request{Limits: []engine.Limit{exact}, Cost: int64(1 + i%3)}).Results[0]
				before := store.count()
				got := ask(t, e, engine.Request{Limits: []engine.Limit{l}, Cost: int64(1 + i%3)}).Results[0]
				if store.count() == before {
					fromMemory++
				}
				if want.Key = l.Key; got != want {
					t.Fatalf("%s: request %d is told\n%+v, want\n%+v", a, i, got, want)
				}
			}
			if fromMemory < 100 {
				t.Errorf("%s: %d answers are from memory", a, fromMemory)
			}
		})
	}
}
