package engine_test

import (
	"slices"
	"testing"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/storetest"
)

// TestSettleOfARedefinedLimitRaisesNoEvent: it would be about a limit that is no more. Another amount in the same window, as of
// another tier, is the same limit, and so is one whose counter was reset. What a settle has used up is denied from memory.
func TestSettleOfARedefinedLimitRaisesNoEvent(t *testing.T) {
	t.Parallel()
	both := []engine.EventType{engine.EventWarning, engine.EventExceeded}
	for name, c := range map[string]struct {
		algorithm engine.Algorithm
		change    func(*engine.Limit)
		reset     bool
		used      int64
		want      []engine.EventType
	}{
		"the same":          {used: 101, want: both},
		"the same bucket":   {algorithm: engine.TokenBucket, used: 101, want: both},
		"another amount":    {change: func(l *engine.Limit) { l.Limit = 20 }, used: 101, want: both},
		"a reset one":       {reset: true, used: 99, want: both},
		"another window":    {change: func(l *engine.Limit) { l.Window = window(t, "1d") }, used: 101},
		"another algorithm": {change: func(l *engine.Limit) { l.Algorithm = engine.FixedWindow }, used: 101},
	} {
		withEngine(t, func(t *testing.T, store *tap, e *engine.Engine) {
			l := per(t, "k", 10, "1h")
			l.Algorithm = c.algorithm
			charged := l
			ask(t, e, engine.Request{Limits: []engine.Limit{l}, ID: "job"})
			if c.change != nil {
				c.change(&l)
			}
			ask(t, e, engine.Request{Limits: []engine.Limit{l}})
			if c.reset {
				reset(t, e)
			}
			store.events(t)
			d, err := storetest.Settle(t.Context(), e, "job", 100)
			if err != nil || d.Allowed || d.Results[0].Used != c.used || usedNow(t, e, "k") != c.used {
				t.Errorf("%s: %+v, %v, and %d are used; want %d", name, d, err, usedNow(t, e, "k"), c.used)
			}
			var got []engine.EventType
			for _, event := range store.events(t) {
				got = append(got, event.Type)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s: events %q, want %q", name, got, c.want)
			}
			before := store.count()
			if ask(t, e, engine.Request{Limits: []engine.Limit{charged}}); c.want != nil && charged == l && store.count() != before {
				t.Errorf("%s: the next request is not denied from memory", name)
			}
		})
	}
}
