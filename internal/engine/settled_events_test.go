package engine_test

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/seed503877ad/limits/internal/engine"
)

// TestSettleOfARedefinedLimitRaisesNoEvent: it would be about a limit that is no more. Another amount in the same window, as of
// another tier, is the same limit.
func TestSettleOfARedefinedLimitRaisesNoEvent(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*engine.Limit)
		want   []engine.EventType
	}{
		"the same":       {func(*engine.Limit) {}, []engine.EventType{engine.EventWarning, engine.EventExceeded}},
		"another amount": {func(l *engine.Limit) { l.Limit = 20 }, []engine.EventType{engine.EventWarning, engine.EventExceeded}},
		"another window": {func(l *engine.Limit) { l.Window = window(t, "1d") }, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := openTap(t)
			e := start(t, engine.Config{Store: store})
			l := per(t, "k", 10, "1h")
			ask(t, e, engine.Request{Limits: []engine.Limit{l}, ID: "job"})
			c.change(&l)
			ask(t, e, engine.Request{Limits: []engine.Limit{l}})
			store.events(t)
			d, err := e.Settle(t.Context(), "job", 100)
			if err != nil || d.Allowed || d.Results[0].Used != 101 {
				t.Errorf("%s: %+v, %v", name, d, err)
			}
			var got []engine.EventType
			for _, event := range store.events(t) {
				got = append(got, event.Type)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%s: events %q, want %q", name, got, c.want)
			}
		})
	}
}
