package engine_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/sqlite"
	"github.com/seed503877ad/limits/internal/storetest/eachstore"
)

// clock is one that is set by hand.
type clock struct{ at atomic.Pointer[time.Time] }

func (c *clock) set(t *testing.T, text string) {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	c.at.Store(&at)
}

func (c *clock) back(d time.Duration) {
	at := c.at.Load().Add(-d)
	c.at.Store(&at)
}

func (c *clock) now() time.Time { return *c.at.Load() }

// timed opens a store whose clock is set by hand.
func timed(t *testing.T, at string) (*sqlite.Store, *clock) {
	t.Helper()
	c := &clock{}
	c.set(t, at)
	s := eachstore.SQLite(t, c.now)
	return s, c
}

func charge(t *testing.T, s engine.Store, l engine.Limit) *engine.Engine {
	t.Helper()
	e := start(t, engine.Config{Store: s})
	got, err := e.Do(t.Context(), &engine.Request{Verb: engine.Consume, Cost: 3, Limits: []engine.Limit{l}, OnError: engine.OnErrorDeny})
	if err != nil || !got.Allowed || got.Degraded {
		t.Fatalf("charge: %+v, %v", got, err)
	}
	return e
}

func checkQuotas(t *testing.T, s engine.Store) engine.QuotaPage {
	t.Helper()
	page, err := engine.CheckQuotas(t.Context(), s, engine.CounterID{}, 10)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// TestQuotasPastTheirResetReadAsZero charges a window and reads it in its last millisecond and in
// the first one after it, over clock changes and the ends of months.
func TestQuotasPastTheirResetReadAsZero(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, window, zone string
		firstUse           bool
		charged, end       string
	}{
		{"a day", "day", "UTC", false, "2026-05-17T12:00:00Z", "2026-05-18T00:00:00Z"},
		{"a day of 23 hours", "day", "Europe/Berlin", false, "2026-03-29T00:30:00+01:00", "2026-03-30T00:00:00+02:00"},
		{"a day of 25 hours", "day", "Europe/Berlin", false, "2026-10-25T00:30:00+02:00", "2026-10-26T00:00:00+01:00"},
		{"the hour that comes twice", "hour", "Europe/Berlin", false, "2026-10-25T02:30:00+02:00", "2026-10-25T02:00:00+01:00"},
		{"a week with a clock change", "week", "America/New_York", false, "2026-03-02T09:00:00-05:00", "2026-03-09T00:00:00-04:00"},
		{"a month of 28 days", "month", "UTC", false, "2026-02-28T23:59:59Z", "2026-03-01T00:00:00Z"},
		{"a month ahead of UTC", "month", "Pacific/Auckland", false, "2026-04-30T13:00:00Z", "2026-06-01T00:00:00+12:00"},
		{"a month with a clock change", "month", "Europe/Berlin", false, "2026-03-31T23:00:00+02:00", "2026-04-01T00:00:00+02:00"},
		{"a day from its first use", "day", "Europe/Berlin", true, "2026-03-28T12:00:00+01:00", "2026-03-29T12:00:00+02:00"},
		{"a month from the 31st", "month", "UTC", true, "2026-01-31T10:00:00Z", "2026-02-28T10:00:00Z"},
		{"30 days from the first use", "30d", "", true, "2026-01-31T10:00:00Z", "2026-03-02T10:00:00Z"},
		{"an hour", "1h", "", false, "2026-05-17T12:34:56Z", "2026-05-17T13:00:00Z"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s, clock := timed(t, c.charged)
			l := engine.Limit{CounterID: engine.CounterID{Key: "k", Name: engine.PolicyName("p", "n")}, Policy: "p",
				Algorithm: engine.FixedWindow, Limit: 5, FirstUse: c.firstUse, Threshold: -1}
			var err error
			if l.Window, err = engine.ParseWindow(c.window); err != nil {
				t.Fatal(err)
			}
			if c.zone != "" {
				if l.Zone, err = time.LoadLocation(c.zone); err != nil {
					t.Fatal(err)
				}
			}
			e := charge(t, s, l)
			for _, look := range []struct {
				before    time.Duration
				over, has int
			}{{time.Millisecond, 0, 1}, {0, 1, 0}} {
				clock.set(t, c.end)
				clock.back(look.before)
				if page := checkQuotas(t, s); page.Read != 1 || page.Over != look.over || len(page.Stale) > 0 {
					t.Errorf("%s before its end: %+v", look.before, page)
				}
				if has, err := e.Status(t.Context(), "k"); err != nil || len(has) != look.has {
					t.Errorf("%s before its end: status %+v, %v", look.before, has, err)
				}
			}
		})
	}
}

// TestStaleQuotasAreReported stores rows as no engine writes them.
func TestStaleQuotasAreReported(t *testing.T) {
	t.Parallel()
	s, _ := timed(t, "2026-05-17T12:00:00Z")
	month, err := engine.ParseWindow("month")
	if err != nil {
		t.Fatal(err)
	}
	charge(t, s, engine.Limit{CounterID: engine.CounterID{Key: "a", Name: "month"}, Algorithm: engine.FixedWindow, Limit: 5,
		Window: month, Threshold: -1})
	good, _, err := s.Counters(t.Context(), "a")
	if err != nil || len(good) != 1 {
		t.Fatalf("%+v, %v", good, err)
	}
	// The state ends with the month, though the limit says that the window began on the first and lasted a day.
	plant(t, s, "b", `{"algorithm":"fixed_window","limit":5,"window":"day"}`, good[0].State)
	plant(t, s, "c", `{"algorithm":"fixed_window","limit":5,"window":"day","timezone":"Mars/Olympus"}`, good[0].State)
	plant(t, s, "d", string(good[0].Spec), good[0].State[:12])
	page := checkQuotas(t, s)
	var told []string
	for _, x := range page.Stale {
		told = append(told, x.Key+": "+x.Err.Error())
	}
	want := []string{"b: its window ended at 2026-05-02T00:00:00Z, and 3 of 5 still count as used", "c: ", "d: "}
	if page.Read != 4 || page.Over != 1 || len(told) != len(want) {
		t.Fatalf("%+v", page)
	}
	for i := range want {
		if !strings.HasPrefix(told[i], want[i]) {
			t.Errorf("%q, want %q", told[i], want[i])
		}
	}
}

func plant(t *testing.T, s engine.Store, key, spec string, state []byte) {
	t.Helper()
	b := engine.Batch{Counters: []engine.CounterID{{Key: key, Name: "month"}}}
	err := s.Update(t.Context(), b, func(snap engine.Snapshot) engine.Changes {
		return engine.Changes{Counters: []engine.CounterChange{{State: state, Spec: []byte(spec), ExpiresAt: snap.Now + 1}}}
	})
	if err != nil {
		t.Fatal(err)
	}
}
