package alerts_test

import (
	"strings"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
)

// TestWordsOfWarnings: a user in a warning is close to a limit, and was denied nothing.
func TestWordsOfWarnings(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{throttle: {limit: 1, window: 1h}, rules: [
		{name: warned, match: {type: warning}, threshold: {denials: 1}, groupBy: [key], resolveAfter: 30s},
		{name: denied, match: {policy: d}, threshold: {denials: 1}}]}`)
	s := r.run()
	tell := func(n int, kind, policy, key string, denied int64) {
		e := r.exceeded("7", policy, denied)
		e.Type, e.Key = kind, key
		r.take(s, e)
		r.seen.wait(t, "told", n)
	}
	tell(1, limits.EventWarning, "p", "first", 1)
	r.advance(5 * time.Second)
	tell(1, limits.EventWarning, "p", "first", 1)
	tell(2, limits.EventWarning, "p", "a", 1)
	tell(3, limits.EventWarning, "p", "b", 1)
	tell(4, limits.EventExceeded, "d", "c", 3)
	digest := func() (text string, data limits.AlertDigest) {
		for _, d := range r.send("log") {
			if d.Message.Kind == alerts.KindDigest {
				text, data = d.Message.Text, digestOf(t, d)
			}
		}
		return text, data
	}
	r.advance(time.Minute)
	r.digests(s, "1 digests of 3 alerts")
	text, data := digest()
	want := `3 alerts with 3 denials between 2026-01-15 12:00:05 UTC and 2026-01-15 12:00:05 UTC.
policy p: 2 alerts, no denial
policy d: 1 alert, 3 denials
e.g. key c: 1 alert, 3 denials
e.g. key a: 1 alert, no denial
e.g. key b: 1 alert, no denial`
	if text != want || data.Denied != 3 {
		t.Errorf("%d denied: %s\nwant %s", data.Denied, text, want)
	}
	r.advance(time.Hour)
	if _, err := s.Resolve(t.Context()); err != nil {
		t.Fatal(err)
	}
	resolved := r.send("log")
	if len(resolved) != 1 || resolved[0].Message.Text != "No warning since 2026-01-15 12:00:05 UTC; 2 warnings over 5s." {
		t.Errorf("%+v", resolved)
	}
}

// TestTitleSentIsStored: what alerts show and alerts.resolved repeat is what was sent, also if more events came meanwhile.
func TestTitleSentIsStored(t *testing.T) {
	t.Parallel()
	onBothStores(t, `{rules: [{name: a, threshold: {denials: 5, within: 10m}, groupBy: [policy]}]}`, func(t *testing.T, r *rig) {
		s := r.newService(r.store, r.limiter)
		// Both are taken before the notice of the first is decided.
		for _, e := range []alerts.Event{r.exceeded("7", "api", 5), r.exceeded("7", "api", 7)} {
			if err := s.Take(t.Context(), []alerts.Event{e}); err != nil {
				t.Fatal(err)
			}
		}
		r.start(s)
		r.seen.wait(t, "told", 1)
		sent, stored := r.send("log")[0].Message, r.only()
		if sent.Title != stored.Title || sent.Text != stored.Text {
			t.Errorf("sent   %q: %q\nstored %q: %q", sent.Title, sent.Text, stored.Title, stored.Text)
		}
	})
}

// TestKeyOfSeveralIsAnExample: an alert about several users names a key, but not as the last one.
func TestKeyOfSeveralIsAnExample(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{rules: [{name: a, threshold: {denials: 2, within: 10m}, groupBy: [policy]}]}`)
	r.take(r.run(), r.exceeded("va", "api", 1), r.exceeded("vb", "api", 1), r.exceeded("vc", "api", 1))
	r.seen.wait(t, "told", 1)
	if text := r.only().Text; !strings.HasPrefix(text, "One of them: Policy api, limit ") {
		t.Error(text)
	}
}
