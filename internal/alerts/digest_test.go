package alerts_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed503877ad/limits/internal/alerts"
)

// digests runs the job of digests and checks its note and its messages.
func (r *rig) digests(s *running, want string) {
	r.t.Helper()
	if note, err := s.Digest(r.t.Context()); err != nil || note != want {
		r.t.Errorf("at %s: %s, %v; want %s", r.clock.now().UTC().Format("15:04"), note, err, want)
	}
}

const (
	digestQuietUntil = "0 digests of 0 alerts"
	oneDigest        = "1 digests of 1 alerts"
)

// throttled raises alerts of a user, one for each policy. The throttle holds all but the first.
func (r *rig) throttled(s *running, user string, policies ...string) {
	r.t.Helper()
	for _, p := range policies {
		before := r.seen.count("told")
		r.take(s, r.exceeded(user, p, 1))
		r.seen.wait(r.t, "told", before+1)
	}
}

const oneAnHour = `{throttle: {limit: 1, window: 1h}, rules: [{name: denials, threshold: {denials: 1}}]}`

// TestDigestRespectsSilences: an alert that was held before a silence is sent when it ends, even
// if it is ended early.
func TestDigestRespectsSilences(t *testing.T) {
	t.Parallel()
	r := newRig(t, oneAnHour)
	s := r.run()
	r.throttled(s, "7", "a", "b")
	r.throttled(s, "8", "a", "b")
	for _, silence := range []alerts.Silence{
		{ID: "seven", User: "7", Reason: "import"}, {ID: "user", User: "9", Reason: "import"}, {ID: "policy", Policy: "b*b", Reason: "import"},
		{ID: "rule", Rule: "others", Reason: "import"}, {ID: "key", Key: "*:9", Reason: "import"},
	} {
		if _, err := r.store.AddSilence(t.Context(), silence, 4*time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	r.advance(time.Hour)
	r.digests(s, oneDigest)
	for _, d := range r.outbox("nats") {
		if d.Message.Kind == alerts.KindDigest && d.Message.User != "8" {
			t.Errorf("a digest of user %s, who is silenced", d.Message.User)
		}
	}
	r.advance(time.Hour)
	r.digests(s, digestQuietUntil)
	if _, found, err := r.store.EndSilence(t.Context(), "seven"); !found || err != nil {
		t.Fatal(found, err)
	}
	r.digests(s, digestQuietUntil)
	r.advance(time.Hour)
	r.digests(s, oneDigest)
}

// TestLateDigestRespectsQuietHours: the run at the full hour before the quiet hours failed.
func TestLateDigestRespectsQuietHours(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{throttle: {limit: 1, window: 1h}, rules: [{name: denials, threshold: {denials: 1}, quietHours: [{from: "14:00", to: "16:30"}]}]}`)
	s := r.run()
	r.throttled(s, "7", "a", "b")
	r.advance(2 * time.Hour)
	r.digests(s, digestQuietUntil)
	r.digests(s, digestQuietUntil)
	for _, want := range []string{digestQuietUntil, digestQuietUntil, oneDigest} {
		r.advance(time.Hour)
		r.digests(s, want)
	}
}

// TestDigestBeforeQuietHoursIsSent, also if they begin within the lead of the digest, a minute after the full hour.
func TestDigestBeforeQuietHoursIsSent(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{throttle: {limit: 1, window: 1h}, rules: [{name: denials, threshold: {denials: 1}, quietHours: [{from: "13:01", to: "08:00"}]}]}`)
	s := r.run()
	r.throttled(s, "7", "a", "b")
	r.advance(time.Hour)
	if at := r.clock.now().UTC().Format("15:04"); at != "13:00" {
		t.Fatalf("it is %s", at)
	}
	r.digests(s, oneDigest)
}

// TestDigestRunsAheadOfStoreClock: by the store's clock quiet hours and silences go on a little,
// but by the worker's clock, at whose full hour the digest runs, they have ended.
func TestDigestRunsAheadOfStoreClock(t *testing.T) {
	t.Parallel()
	for _, silenced := range []bool{false, true} {
		for ahead, want := range map[time.Duration]string{45 * time.Second: oneDigest, alerts.DigestLead: oneDigest, alerts.DigestLead + time.Millisecond: digestQuietUntil} {
			r := newRig(t, `{rules: [{name: denials, threshold: {denials: 1}, quietHours: [{from: "11:00", to: "13:00"}]}]}`)
			s := r.run()
			r.take(s, r.exceeded("7", "a", 1))
			r.seen.wait(t, "held", 1)
			if silenced {
				if _, err := r.store.AddSilence(t.Context(), alerts.Silence{ID: "s", User: "7", Reason: "import"}, time.Hour); err != nil {
					t.Fatal(err)
				}
			}
			r.advance(time.Hour - ahead)
			r.digests(s, want)
		}
	}
}

// TestSenderIsWokenForDeliveries of each kind. Otherwise they would wait until its next poll.
func TestSenderIsWokenForDeliveries(t *testing.T) {
	t.Parallel()
	r := newRig(t, oneAnHour)
	s := r.run()
	r.throttled(s, "7", "a", "b")
	r.seen.wait(t, "delivered", 1)
	r.advance(time.Hour)
	r.digests(s, oneDigest)
	if n := r.seen.count("delivered"); n != 2 {
		t.Errorf("the sender was woken %d times after the digest, want 2", n)
	}
	r.advance(24 * time.Hour)
	if note, err := s.Resolve(t.Context()); err != nil || note != "resolved 2" {
		t.Fatal(note, err)
	}
	if n := r.seen.count("delivered"); n != 3 {
		t.Errorf("the sender was woken %d times when alerts were resolved, want 3", n)
	}
}

// TestEveryUserGetsDigest, including users beyond the first 500 that are looked up.
func TestEveryUserGetsDigest(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{rules: [{name: denials, threshold: {denials: 1}, quietHours: [{from: "11:00", to: "13:00"}]}]}`)
	s := r.run()
	const users = 501
	var all []alerts.Event
	for i := range users {
		all = append(all, r.exceeded(fmt.Sprint(i), "a", 1))
	}
	r.take(s, all...)
	r.seen.wait(t, "held", users)
	r.advance(2 * time.Hour)
	r.digests(s, "501 digests of 501 alerts")
}

// TestDigestCoversSomeAlerts and leaves the user's others for another digest.
func TestDigestCoversSomeAlerts(t *testing.T) {
	t.Parallel()
	r := newRig(t, oneAnHour)
	s := r.run()
	r.throttled(s, "7", "a", "b", "c")
	if _, err := r.store.AddSilence(t.Context(), alerts.Silence{ID: "s", Policy: "c", Reason: "import"}, 90*time.Minute); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r.advance(time.Hour)
		r.digests(s, oneDigest)
	}
	var told []string
	for _, d := range r.outbox("log") {
		if d.Message.Kind == alerts.KindDigest {
			for _, p := range digestOf(t, d).Policies {
				told = append(told, p.Name)
			}
		}
	}
	if !slices.Equal(told, []string{"b", "c"}) {
		t.Errorf("the digests tell of policies %q, want b and then c", told)
	}
}

// TestDigestGivesChannelItsOwnAlerts: a channel gets only alerts that would have been sent to it.
func TestDigestGivesChannelItsOwnAlerts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		held      []string // policies
		log, nats string
	}{
		{[]string{"mild", "bad", "both"}, "2 warning both mild .digest/log", "2 critical bad both .digest-2/nats"},
		{[]string{"both"}, "1 warning both .digest/log", "1 warning both .digest/nats"},
		{[]string{"mild"}, "1 info mild .digest/log", ""},
	} {
		r := newRig(t, `{throttle: {limit: 1, window: 1h}, rules: [
			{name: mild, match: {policy: mild}, threshold: {denials: 1}, severity: info, channels: [log]},
			{name: bad, match: {policy: bad}, threshold: {denials: 1}, severity: critical, channels: [nats]},
			{name: both, match: {policy: [both, first]}, threshold: {denials: 1}, severity: warning, channels: [nats, log]}]}`)
		s := r.run()
		r.throttled(s, "7", append([]string{"first"}, c.held...)...)
		r.advance(time.Hour)
		r.digests(s, fmt.Sprintf("1 digests of %d alerts", len(c.held)))
		got, deliveries, id := map[string]string{}, 0, ""
		for _, d := range append(r.outbox("log"), r.outbox("nats")...) {
			if d.Message.Kind != alerts.KindDigest {
				continue
			}
			data := digestOf(t, d)
			deliveries, id = deliveries+1, data.Digest
			if data.Severity != string(d.Message.Severity) {
				t.Errorf("the body of a message of severity %s says %q", d.Message.Severity, data.Severity)
			}
			text := fmt.Sprint(data.Alerts, " ", data.Severity)
			for _, p := range data.Policies {
				text += " " + p.Name
			}
			got[d.Channel] += text + " " + strings.TrimPrefix(d.ID, id)
		}
		if got["log"] != c.log || got["nats"] != c.nats {
			t.Errorf("%v gave %q, want %q and %q", c.held, got, c.log, c.nats)
		}
		if all, err := r.store.DeliveriesOf(t.Context(), id, 9); err != nil || len(all) != deliveries {
			t.Errorf("of the digest %d deliveries are shown, want %d: %v", len(all), deliveries, err)
		}
	}
}

// busy is a store in which another alert is held after each digest.
type busy struct {
	alerts.Store
	more func()
}

func (b busy) DigestAlerts(ctx context.Context, user string, max int, build func([]alerts.Alert, int64) (alerts.DigestDecision, error)) (int, error) {
	n, err := b.Store.DigestAlerts(ctx, user, max, build)
	if n > 0 {
		b.more()
	}
	return n, err
}

// TestDigestRunSkipsAlertsHeldMeanwhile: otherwise a user who is denied all the time would get a
// digest for each alert.
func TestDigestRunSkipsAlertsHeldMeanwhile(t *testing.T) {
	t.Parallel()
	for want, most := range map[string]int{"1 digests of 29 alerts": 0, "3 digests of 29 alerts": 10} {
		onBothStores(t, oneAnHour, func(t *testing.T, r *rig) {
			var s *running
			n := 0
			more := func() {
				n++
				r.throttled(s, "7", fmt.Sprint("policy-", n))
			}
			s = r.run(busy{r.store, func() {
				if n < 40 {
					more()
				}
			}})
			if most > 0 {
				s.DigestMax = most
			}
			for range 30 {
				more()
			}
			if note, err := s.Digest(t.Context()); err != nil || note != want {
				t.Errorf("%s, %v; want %s", note, err, want)
			}
			for _, a := range r.all() {
				if a.Notice == alerts.Held && a.Digest == "" && a.HeldUntil%time.Hour.Milliseconds() != 0 {
					t.Errorf("an alert is held until %s, want the next full hour", time.UnixMilli(a.HeldUntil))
				}
			}
		})
	}
}

// refusing is a store that fails for some users' digests.
type refusing struct {
	alerts.Store
	users []string
	asked *int
	// err is the error; nil for that of a disk.
	err error
	// refused, if set, is called with each failure.
	refused func()
}

func (f refusing) DigestAlerts(ctx context.Context, user string, max int, build func([]alerts.Alert, int64) (alerts.DigestDecision, error)) (int, error) {
	if *f.asked++; slices.Contains(f.users, user) {
		if f.refused != nil {
			f.refused()
		}
		return 0, cmp.Or(f.err, errors.New("disk I/O error"))
	}
	return f.Store.DigestAlerts(ctx, user, max, build)
}

// TestFailedDigestDoesNotDelayOtherUsers: the others get theirs in the same hour, unless the store
// fails altogether. Locks that something holds on the alerts of some users are no such failure.
func TestFailedDigestDoesNotDelayOtherUsers(t *testing.T) {
	t.Parallel()
	locked := errors.New("canceling statement due to lock timeout")
	for _, c := range []struct {
		failing string
		err     error
		note    string
		asked   int
	}{
		{"a", nil, "4 digests of 4 alerts", 5},
		{"a b d e", nil, "1 digests of 1 alerts", 5},
		{"a b c", nil, "0 digests of 0 alerts", 3},
		{"a b c d", locked, "1 digests of 1 alerts", 5},
	} {
		r, asked := newRig(t, oneAnHour), 0
		s := r.run(refusing{Store: r.store, users: strings.Fields(c.failing), err: c.err, asked: &asked})
		s.Locked = func(err error) bool { return errors.Is(err, locked) }
		for i, user := range []string{"a", "b", "c", "d", "e"} {
			r.take(s, r.exceeded(user, "sent", 1), r.exceeded(user, "held", 1))
			r.seen.wait(t, "held", i+1)
		}
		r.advance(time.Hour)
		note, err := s.Digest(t.Context())
		if err == nil || !strings.Contains(err.Error(), `user "a"`) || note != c.note || asked != c.asked {
			t.Errorf("failing for %s: %s after %d users, %v; want %s after %d", c.failing, note, asked, err, c.note, c.asked)
		}
	}
}

// TestStoppedDigestAsksForNoMoreUsers: each would only fail.
func TestStoppedDigestAsksForNoMoreUsers(t *testing.T) {
	t.Parallel()
	r, asked := newRig(t, oneAnHour), 0
	ctx, stop := context.WithCancel(t.Context())
	s := r.run(refusing{Store: r.store, users: []string{"a"}, asked: &asked, refused: stop})
	for i, user := range []string{"a", "b"} {
		r.take(s, r.exceeded(user, "sent", 1), r.exceeded(user, "held", 1))
		r.seen.wait(t, "held", i+1)
	}
	r.advance(time.Hour)
	if note, err := s.Digest(ctx); err == nil || asked != 1 {
		t.Errorf("%d users were asked for: %s, %v", asked, note, err)
	}
}

// TestDigestIsSentWhenEveryFullHourIsQuiet: otherwise there would never be one.
func TestDigestIsSentWhenEveryFullHourIsQuiet(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{rules: [{name: denials, threshold: {denials: 1}, quietHours: [{from: "00:00", to: "12:30"}, {from: "12:31", to: "24:00"}]}]}`)
	s := r.run()
	r.take(s, r.exceeded("7", "a", 1))
	r.seen.wait(t, "held", 1)
	r.advance(time.Hour)
	r.digests(s, oneDigest)
}

// TestLongDigestListsTheFirst policies only, and the times of all alerts.
func TestLongDigestListsTheFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t, oneAnHour)
	s := r.run()
	r.throttled(s, "7", "sent")
	for i, late := range []time.Duration{0, -30 * time.Second, 20 * time.Second, 0, 0, 0, 0, 0, 0, 0, 0, 0} {
		e := r.exceeded("7", fmt.Sprintf("p%02d", i), 1)
		e.Time += late.Milliseconds()
		r.take(s, e)
		r.seen.wait(t, "held", i+1)
	}
	r.advance(time.Hour)
	r.digests(s, "1 digests of 12 alerts")
	want := "12 alerts with 12 denials between 2026-01-15 11:59:30 UTC and 2026-01-15 12:00:20 UTC."
	for i := range 10 {
		want += fmt.Sprintf("\npolicy p%02d: 1 alert, 1 denial", i)
	}
	want += "\n… and 2 more policies\ne.g. key api:user:7: 12 alerts, 12 denials"
	i := slices.IndexFunc(r.outbox("log"), func(d alerts.Delivery) bool { return d.Message.Kind == alerts.KindDigest && d.Message.Text == want })
	if i < 0 {
		t.Errorf("no digest says %s", want)
	}
}
