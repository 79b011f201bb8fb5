package bus

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/natsconn"
)

// TestARequestIsAnsweredOnce, whatever is wrong with it, and charges nothing unless it is decided.
func TestARequestIsAnsweredOnce(t *testing.T) {
	t.Parallel()
	var late atomic.Bool
	var charged atomic.Int64
	e := &fakeEngine{tooLate: func(time.Time) bool { return late.Load() }}
	e.submit = func(r *engine.Request) error {
		if r.Cost == 99 {
			return engine.ErrOverloaded
		}
		charged.Add(1)
		return allowing(r)
	}
	w, nc := oneWorker(t, e)
	valid, revoked := createKey(t, nc, `{"user":"7"}`), createKey(t, nc, `{"user":"7"}`)
	ask(t, nc, limits.SubjectKeysRevoke, `{"id":"`+revoked.Key.ID+`"}`)
	verified := func(key, more string) string { return fmt.Sprintf(`{"apiKey":%q%s}`, key, more) }
	for _, c := range []struct {
		late          bool
		subject, body string
		charges       int64
	}{
		{subject: limits.SubjectVerify, body: verified(valid.APIKey, ""), charges: 1},
		{subject: limits.SubjectVerify, body: verified(valid.APIKey, ""), charges: 1}, // from the cache
		{subject: limits.SubjectVerify, body: verified(valid.APIKey, `,"policy":"unknown"`)},
		{subject: limits.SubjectVerify, body: verified(valid.APIKey, `,"cost":0`)},
		{subject: limits.SubjectVerify, body: verified(revoked.APIKey, "")},
		{subject: limits.SubjectVerify, body: verified("unknown", "")},
		{subject: limits.SubjectConsume, body: hot, charges: 1},
		{subject: limits.SubjectConsume, body: with(`"cost":0`)},
		{subject: limits.SubjectConsume, body: `{"policy":"unknown"}`},
		{subject: limits.SubjectStatus, body: `{"key":"a"}`},
		{subject: limits.SubjectStatus, body: `{}`},
		{subject: limits.SubjectVerify, body: verified(valid.APIKey, `,"cost":99`)},
		{subject: limits.SubjectConsume, body: with(`"cost":99`)},
		{subject: "$SRV.STATS.limits"},
		{subject: limits.SubjectVerify, body: verified(valid.APIKey, ""), late: true},
	} {
		if late.Store(c.late); c.late {
			dialerOf(w.svc.cfg.Conn).handlers.Set(map[string]natsconn.Handler{c.subject: nil}) // as while handlers lag
		}
		inbox, err := nc.SubscribeSync(nc.NewInbox())
		if err != nil {
			t.Fatal(err)
		}
		before := charged.Load()
		if err := nc.PublishRequest(c.subject, inbox.Subject, []byte(c.body)); err != nil {
			t.Fatal(err)
		}
		if _, err := inbox.NextMsg(patience); err != nil {
			t.Fatalf("%s %s: %v", c.subject, c.body, err)
		}
		// Its endpoint takes one request at a time, so all that it does follows before this answer.
		ask(t, nc, c.subject, "{")
		waitFor(t, "no request is pending", func() bool { return w.svc.pending.Load() == 0 })
		if err := w.svc.cfg.Conn.Flush(); err != nil {
			t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		if more, _, _ := inbox.Pending(); more != 0 || charged.Load()-before != c.charges {
			t.Errorf("%s %s, late: %t: %d more answers; charged %d times, want %d", c.subject, c.body, c.late, more, charged.Load()-before, c.charges)
		}
	}
}

// TestPagesAndPeriodsHaveDefaults, those that the client's types tell of.
func TestPagesAndPeriodsHaveDefaults(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_700_000_040_000) // a whole minute
	all := []byte(`{}`)
	counters, err1 := decodeList(all)
	ofKeys, err2 := decodeListKeys(all)
	ofOverrides, err3 := decodeListOverrides(all)
	policies, err4 := decodePolicies(all)
	runs, err5 := decodeJobHistory(all)
	ofAlerts, err6 := decodeListAlerts(all)
	dead, _, err7 := decodeDead(all)
	top, err8 := decodeTop(all, now)
	_, usage, err9 := decodeUsage([]byte(`{"report":"traffic"}`), now)
	if err := errors.Join(err1, err2, err3, err4, err5, err6, err7, err8, err9); err != nil {
		t.Fatal(err)
	}
	got := []int{counters.Max, ofKeys.Max, ofOverrides.Max, policies.Max, runs.Max, ofAlerts.Max, dead.Max, top.Max, usage.Max}
	if want := []int{100, 100, 100, 100, 50, 50, 50, 20, 20}; !slices.Equal(got, want) {
		t.Errorf("pages of %v, want %v", got, want)
	}
	if hour := now.Add(-time.Hour).UnixMilli(); top.Since != hour || top.Until != now.UnixMilli()+1 {
		t.Errorf("top is of %d to %d, want of the last hour", top.Since, top.Until)
	}
	if day := now.Add(-24 * time.Hour).UnixMilli(); usage.Since != day || usage.Until != now.UnixMilli()+1 {
		t.Errorf("usage is of %d to %d, want of the last 24 hours", usage.Since, usage.Until)
	}
}
