package alerts_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/alerts"
)

const atOnce = "rules: [{name: denials, threshold: {denials: 1}}]"

// TestEventIDIsTakenOnce: a second event with the same id is ignored, whatever its data.
func TestEventIDIsTakenOnce(t *testing.T) {
	t.Parallel()
	onBothStores(t, atOnce, func(t *testing.T, r *rig) {
		s := r.run()
		first, second := r.exceeded("7", "api", 1), r.exceeded("8", "other", 5)
		second.ID = first.ID
		r.take(s, first)
		r.take(s, second)
		r.take(s, second, first)
		r.seen.wait(t, "sent", 1)
		if a := r.only(); a.User != "7" || a.Denied != 1 {
			t.Errorf("%+v", a)
		}
	})
}

func TestASilenceEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, atOnce)
	silence := alerts.Silence{ID: "s", User: "7", Reason: "a load test"}
	if _, err := r.store.AddSilence(t.Context(), silence, time.Minute); err != nil {
		t.Fatal(err)
	}
	s := r.run()
	r.take(s, r.exceeded("7", "api", 1))
	r.seen.wait(t, "silenced", 1)
	if a := r.only(); a.Notice != alerts.Silenced || r.slots("7") != 0 {
		t.Errorf("%s, %d slots charged", a.Notice, r.slots("7"))
	}
	r.advance(2 * time.Minute)
	r.take(s, r.exceeded("7", "api", 4999))
	r.seen.wait(t, "sent", 1)
	all := r.outbox("nats")
	if a := r.only(); a.Denied != 5000 || len(all) != 1 {
		t.Fatalf("%+v, told as %+v", a, all)
	}
	if title := all[0].Message.Title; !strings.Contains(title, "5000 times") {
		t.Errorf("told as %q, want what is now", title)
	}
}

const atNight = `rules: [{name: denials, threshold: {denials: 1}, quietHours: [{from: "12:00", to: "14:30"}]}]`

// TestQuietHoursEndInADigest: the first one after them, or after a reload of a file that no longer has them.
func TestQuietHoursEndInADigest(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		file string // from the second hour on
		held int    // hours
	}{
		"as they were":     {atNight, 3},
		"without the rule": {"rules: [{name: other, match: {policy: nothing}}]", 2},
		"shorter":          {strings.Replace(atNight, "14:30", "13:30", 1), 2},
		"longer":           {strings.Replace(atNight, "14:30", "15:30", 1), 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testQuietHours(t, c.file, c.held)
		})
	}
}

func testQuietHours(t *testing.T, file string, held int) {
	r := newRig(t, atNight)
	s := r.run()
	for i := range 3 {
		r.take(s, r.exceeded("7", fmt.Sprint("p", i), 2))
	}
	r.seen.wait(t, "held", 3)
	digest := func(want string) {
		t.Helper()
		if note, err := s.Digest(t.Context()); err != nil || note != want {
			t.Errorf("%s, %v; want %s", note, err, want)
		}
	}
	for hour := 1; hour < held; hour++ {
		r.advance(time.Hour)
		digest("0 digests of 0 alerts")
		r.load(file)
	}
	r.advance(time.Hour)
	digest("1 digests of 3 alerts")
	digest("0 digests of 0 alerts")
	all := r.outbox("nats")
	if len(all) != 1 || all[0].Message.Kind != alerts.KindDigest || all[0].Message.User != "7" {
		t.Fatalf("%+v", all)
	}
	if r.slots("7") != 0 {
		t.Error("what was held was charged")
	}
}

// TestDigestRespectsQuietHours: an alert that the throttle held just before them is not sent in
// them.
func TestDigestRespectsQuietHours(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{throttle: {limit: 1, window: 1h}, rules: [{name: denials, threshold: {denials: 1}, quietHours: [{from: "13:00", to: "14:30"}]}]}`)
	s := r.run()
	r.take(s, r.exceeded("7", "a", 1), r.exceeded("7", "b", 1))
	r.seen.wait(t, "told", 2)
	for _, step := range []struct {
		after time.Duration
		want  string
	}{{time.Hour, "0 digests of 0 alerts"}, {time.Hour, "0 digests of 0 alerts"}, {time.Hour, "1 digests of 1 alerts"}} {
		r.advance(step.after)
		if note, err := s.Digest(t.Context()); err != nil || note != step.want {
			t.Errorf("at %s: %s, %v; want %s", r.clock.now().UTC(), note, err, step.want)
		}
	}
}

// TestDigestRespectsNextQuietHours, which begin before the full hour after the first ones.
func TestDigestRespectsNextQuietHours(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{rules: [{name: denials, threshold: {denials: 1}, quietHours: [{from: "11:00", to: "13:30"}, {from: "13:50", to: "14:30"}]}]}`)
	s := r.run()
	r.take(s, r.exceeded("7", "a", 1))
	r.seen.wait(t, "told", 1)
	for _, want := range []string{"0 digests of 0 alerts", "0 digests of 0 alerts", "1 digests of 1 alerts"} {
		r.advance(time.Hour)
		if note, err := s.Digest(t.Context()); err != nil || note != want {
			t.Errorf("at %s: %s, %v; want %s", r.clock.now().UTC(), note, err, want)
		}
	}
}

// TestRenamedChannelLosesNoAlerts: alerts raised before are sent to the renamed channel, whether
// or not the alert has other channels that still exist.
func TestRenamedChannelLosesNoAlerts(t *testing.T) {
	t.Parallel()
	for _, beside := range []string{"", ", log"} {
		t.Run("channels old"+beside, func(t *testing.T) {
			t.Parallel()
			renameChannel(t, beside)
		})
	}
}

func renameChannel(t *testing.T, beside string) {
	file := func(channel, quiet string) string {
		return fmt.Sprintf(`{channels: [{name: %s, slack: {url: "https://example.com/x"}, resolved: true}],
			rules: [{name: denials, threshold: {denials: 1}, channels: [%[1]s%s], quietHours: [{from: %q, to: "14:30"}]}]}`, channel, beside, quiet)
	}
	r := newRig(t, file("old", "13:00"))
	s := r.run()
	r.take(s, r.exceeded("7", "sent", 1))
	r.seen.wait(t, "sent", 1)
	r.load(file("old", "11:00"))
	r.take(s, r.exceeded("7", "held", 1))
	r.seen.wait(t, "held", 1)
	s.stop()
	r.dieCharged(r.exceeded("7", "pending", 1))
	if old := r.outbox("old"); len(old) != 1 {
		t.Fatalf("%+v", old)
	}
	r.load(file("new", "14:29"))
	r.advance(3 * time.Hour)
	s = r.run()
	r.seen.wait(t, "sent", 2)
	if _, err := s.Digest(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Resolve(t.Context()); err != nil {
		t.Fatal(err)
	}
	kinds := map[alerts.Kind]int{}
	for range 2 { // that one is over is due when it was sent that it was raised
		for _, d := range r.send("new") {
			kinds[d.Message.Kind]++
		}
	}
	if kinds[alerts.KindRaised] != 1 || kinds[alerts.KindDigest] != 1 || kinds[alerts.KindResolved] != 2 {
		t.Errorf("%v", kinds)
	}
}

// TestManyAlertsNeedSeveralDigests: a digest is bounded, and the rest does not wait for the next
// hour.
func TestManyAlertsNeedSeveralDigests(t *testing.T) {
	t.Parallel()
	r := newRig(t, atNight)
	s := r.run()
	s.DigestMax = 130
	for i := range 300 {
		r.take(s, r.exceeded("", fmt.Sprint("policy-", i), 2))
	}
	r.seen.wait(t, "held", 300)
	r.advance(3 * time.Hour)
	if note, err := s.Digest(t.Context()); err != nil || note != "3 digests of 300 alerts" {
		t.Errorf("%s, %v", note, err)
	}
	for _, d := range r.outbox("nats") {
		data := digestOf(t, d)
		if len(data.Policies) > 100 || len(data.Keys) > 10 || !strings.HasSuffix(d.Message.Title, " held back for limits of no user") {
			t.Errorf("%q with %d policies and %d keys", d.Message.Title, len(data.Policies), len(data.Keys))
		}
	}
}

func TestStoppedDenialsResolveAlert(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{channels: [{name: log, resolved: false}], rules: [{name: denials, threshold: {denials: 1}}]}`)
	s := r.run()
	r.take(s, r.exceeded("7", "api", 1))
	r.seen.wait(t, "sent", 1)
	if n, l := len(r.send("nats")), len(r.send("log")); n != 1 || l != 1 {
		t.Errorf("%d deliveries for nats and %d for log, want one of each", n, l)
	}
	r.advance(9 * time.Minute)
	r.take(s, r.exceeded("7", "api", 1))
	for _, step := range []struct {
		after time.Duration
		want  string
	}{{9 * time.Minute, "resolved 0"}, {time.Minute, "resolved 1"}, {0, "resolved 0"}} {
		r.advance(step.after)
		if note, err := s.Resolve(t.Context()); err != nil || note != step.want {
			t.Errorf("%s, %v; want %s", note, err, step.want)
		}
	}
	if n, l := len(r.send("nats")), len(r.send("log")); n != 1 || l != 0 {
		t.Errorf("%d deliveries for nats and %d for log that it is over, want 1 and none", n, l)
	}
	r.take(s, r.exceeded("7", "api", 1))
	r.seen.wait(t, "sent", 2)
}

// TestRemovedRuleLosesNoAlerts: an alert whose channel and rule were both removed is sent to the
// default channels.
func TestRemovedRuleLosesNoAlerts(t *testing.T) {
	t.Parallel()
	r := newRig(t, `{channels: [{name: old, slack: {url: "https://example.com/x"}}],
		rules: [{name: gone, threshold: {denials: 1}, channels: [old]}]}`)
	r.dieCharged(r.exceeded("7", "api", 1))
	r.load(atOnce)
	r.advance(afterDeath)
	r.run()
	r.seen.wait(t, "sent", 1)
	if log, nats := r.outbox("log"), r.outbox("nats"); len(log) != 1 || len(nats) != 1 {
		t.Errorf("log was sent %+v, and nats %+v", log, nats)
	}
}

// TestResolveSpansSeveralTransactions: more alerts resolve at once than one transaction has.
func TestResolveSpansSeveralTransactions(t *testing.T) {
	t.Parallel()
	r := newRig(t, atOnce)
	s := r.run()
	var events []alerts.Event
	for i := range 201 {
		events = append(events, r.exceeded(fmt.Sprint(i), "api", 1))
	}
	r.take(s, events...)
	r.seen.wait(t, "sent", len(events))
	r.advance(time.Hour)
	if note, err := s.Resolve(t.Context()); err != nil || note != "resolved 201" {
		t.Errorf("%s, %v; want all 201", note, err)
	}
}

func toldAnHourAgo(t *testing.T) *running {
	t.Helper()
	r := newRig(t, atOnce)
	s := r.run()
	r.take(s, r.exceeded("7", "api", 1))
	r.seen.wait(t, "sent", 1)
	r.advance(time.Hour)
	return s
}

// TestNothingIsResolvedWhileEventsWait: after an outage of the alerter, events about denials that went on are in the stream.
func TestNothingIsResolvedWhileEventsWait(t *testing.T) {
	t.Parallel()
	s := toldAnHourAgo(t)
	var upTo time.Time
	s.CaughtUp = func() time.Time { return upTo }
	for _, step := range []struct {
		upTo time.Time
		want string
	}{{time.Time{}, "resolved 0: events are waiting to be processed"}, {time.Now().Add(-time.Minute), "resolved 0: events are waiting to be processed"}, {time.Now().Add(time.Hour), "resolved 1"}} {
		upTo = step.upTo
		if note, err := s.Resolve(t.Context()); err != nil || note != step.want {
			t.Errorf("%s, %v; want %s", note, err, step.want)
		}
	}
}

// TestNothingIsResolvedWhileEventsAreNotPublished: events about denials that went on may still be in the outbox.
func TestNothingIsResolvedWhileEventsAreNotPublished(t *testing.T) {
	t.Parallel()
	s := toldAnHourAgo(t)
	broken := errors.New("the store is away")
	for _, step := range []struct {
		age  time.Duration
		err  error
		want string
	}{{time.Minute, nil, "resolved 0: events are waiting to be published"}, {0, broken, ""}, {time.Second, nil, "resolved 1"}} {
		s.Unpublished = func(context.Context) (time.Duration, error) { return step.age, step.err }
		if note, err := s.Resolve(t.Context()); !errors.Is(err, step.err) || note != step.want {
			t.Errorf("%q, %v; want %q, %v", note, err, step.want, step.err)
		}
	}
}

// TestCountsAreForgottenWhenNothingCanAddToThem: users may be made up by anybody, and each has a count. It is kept for as long
// as a rule counts and some hours; for longer while events wait, which are counted at their own time.
func TestCountsAreForgottenWhenNothingCanAddToThem(t *testing.T) {
	t.Parallel()
	r := newRig(t, "rules: [{name: a, threshold: {denials: 5, within: 10m}}, {name: b, match: {policy: other}, threshold: {denials: 5, within: 1d}}]")
	s := r.run()
	r.take(s, r.exceeded("7", "api", 4))
	waits, unpublished, broken := false, time.Duration(0), errors.New("the store is away")
	var failure error
	s.CaughtUp = func() time.Time {
		if waits {
			return time.Time{}
		}
		return time.Now().Add(time.Hour)
	}
	s.Unpublished = func(context.Context) (time.Duration, error) { return unpublished, failure }
	now := r.clock.now()
	forget := func(what string, after time.Duration, want int) {
		t.Helper()
		if n, err := s.Forget(t.Context(), now.Add(after), 9); n != want || !errors.Is(err, failure) {
			t.Errorf("%s: forgot %d, %v; want %d", what, n, err, want)
		}
	}
	forget("within the day of a rule, and six hours", 30*time.Hour-time.Minute, 0)
	waits = true
	forget("while events wait", 7*24*time.Hour, 0)
	waits, unpublished = false, time.Minute
	forget("while events are not published", 7*24*time.Hour, 0)
	unpublished, failure = 0, broken
	forget("while it is not known whether events wait", 31*time.Hour, 0)
	failure = nil
	forget("after that", 31*time.Hour+time.Minute, 1) // the time of a change is rounded up to an hour
	waits = true
	forget("the event's id, a day after the stream", 8*24*time.Hour+time.Minute, 1)
}

// TestIdsAreForgottenWhenTheStreamIsFull: it may keep events for minutes then, and millions of ids would be kept for days. An
// event that waits in the outbox may come again although the stream has it no more.
func TestIdsAreForgottenWhenTheStreamIsFull(t *testing.T) {
	t.Parallel()
	r := newRig(t, "rules: [{name: a, threshold: {denials: 5, within: 10m}}]")
	s := r.run()
	now := r.clock.now()
	r.take(s, r.exceeded("7", "api", 4))
	if n, err := s.Forget(t.Context(), now.Add(20*time.Hour), 9); n != 1 || err != nil {
		t.Fatalf("forgot %d, %v; want the count of denials", n, err)
	}
	for _, step := range []struct {
		what                string
		oldest, unpublished time.Duration // the first is after the event was taken
		err                 error
		want                int
	}{
		{"the stream may have it", 6*time.Hour - time.Minute, 0, nil, 0},
		{"it waits to be published", 7 * time.Hour, time.Minute, nil, 0},
		{"the stream is not known", 7 * time.Hour, 0, errors.New("NATS is away"), 0},
		{"the stream is empty", -1, 0, nil, 0},
		{"the stream has newer ones alone", 6*time.Hour + time.Minute, 0, nil, 1},
	} {
		s.OldestEvent = func(context.Context) (time.Time, error) {
			if step.oldest < 0 {
				return time.Time{}, step.err
			}
			return now.Add(step.oldest), step.err
		}
		s.Unpublished = func(context.Context) (time.Duration, error) { return step.unpublished, nil }
		if n, err := s.Forget(t.Context(), now.Add(20*time.Hour), 9); n != step.want || !errors.Is(err, step.err) {
			t.Errorf("%s: forgot %d, %v; want %d, %v", step.what, n, err, step.want, step.err)
		}
	}
}

// TestTwoServicesShareTheWork: each alert is sent once, and no user is sent more than 20.
func TestTwoServicesShareTheWork(t *testing.T) {
	t.Parallel()
	const users, each = 4, 30
	onBothStores(t, atOnce, func(t *testing.T, r *rig) {
		one, two := r.run(), r.run()
		var group sync.WaitGroup
		for u := range users {
			for i := range each {
				e := r.exceeded(fmt.Sprint(u), fmt.Sprint("p", i), 1)
				for _, s := range []*running{one, two} { // both are given each event
					group.Go(func() {
						if err := s.Take(t.Context(), []alerts.Event{e}); err != nil {
							t.Error(err)
						}
					})
				}
			}
		}
		group.Wait()
		r.seen.wait(t, "told", users*each)
		if raised, sent, held := r.seen.count("raised"), r.seen.count("sent"), r.seen.count("held"); raised != users*each || sent != users*20 ||
			held != users*(each-20) {
			t.Errorf("%d raised, %d sent, %d held", raised, sent, held)
		}
		for _, s := range []*running{one, two} {
			group.Go(func() {
				if _, err := s.Digest(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		held := int64(0)
		for _, d := range r.outbox("log") {
			if d.Message.Kind == alerts.KindDigest {
				held += digestOf(t, d).Alerts
			}
		}
		if held != users*(each-20) {
			t.Errorf("digests tell of %d alerts, want %d", held, users*(each-20))
		}
	})
}

// TestAlertTextMatchesItsNumbers, even if more events came before it was sent.
func TestAlertTextMatchesItsNumbers(t *testing.T) {
	t.Parallel()
	r := newRig(t, atOnce)
	s := r.run()
	r.take(s, r.exceeded("7", "api", 1), r.exceeded("7", "api", 4999))
	r.seen.wait(t, "sent", 1)
	all := r.outbox("nats")
	if len(all) != 1 {
		t.Fatalf("%d messages; want 1", len(all))
	}
	var data limits.AlertRaised
	if err := json.Unmarshal(all[0].Message.Data, &data); err != nil {
		t.Fatal(err)
	}
	if data.Denied != 5000 || !strings.Contains(all[0].Message.Title, "5000 times") {
		t.Errorf("denied %d, %q; want 5000 of both", data.Denied, all[0].Message.Title)
	}
}
