package alerts

import (
	"strings"
	"testing"

	"github.com/seed503877ad/limits"
)

// TestPreviewThrottlesLikeTheService: each user has an allowance of all rules together and one of each rule, in any window.
func TestPreviewThrottlesLikeTheService(t *testing.T) {
	t.Parallel()
	event := func(n int, at int64, user, policy string) Event {
		e := denial(n, at, 1)
		e.User, e.Policy = user, policy
		return e
	}
	r := parseGood(t, `{throttle: {limit: 2, window: 1h}, rules: [
		{name: strict, match: {policy: "s*"}, threshold: {denials: 1}, throttle: {limit: 1, window: 1h}},
		{name: other, match: {policy: "o*"}, threshold: {denials: 1}}]}`)
	for name, c := range map[string]struct {
		events []Event
		held   string // the policies of the alerts that are held
	}{
		"of one rule":                 {[]Event{event(1, 0, "7", "s1"), event(2, 1, "7", "s2"), event(3, 2, "7", "o1")}, "s2"},
		"of all rules":                {[]Event{event(1, 0, "7", "o1"), event(2, 1, "7", "o2"), event(3, 2, "7", "s1")}, "s1"},
		"another user has his own":    {[]Event{event(1, 0, "7", "s1"), event(2, 1, "8", "s2"), event(3, 2, "", "s3")}, ""},
		"a millisecond too early":     {[]Event{event(1, 0, "7", "s1"), event(2, 60*minute-1, "7", "s2")}, "s2"},
		"an hour later":               {[]Event{event(1, 0, "7", "s1"), event(2, 60*minute, "7", "s2")}, ""},
		"what is held spends nothing": {[]Event{event(1, 0, "7", "s1"), event(2, 30*minute, "7", "s2"), event(3, 60*minute, "7", "s3")}, "s2"},
	} {
		p := preview(t, r, c.events...)
		var held []string
		for i := range p.Alerts {
			if a := &p.Alerts[i]; a.Notice == Held && a.Reason == "throttle" {
				held = append(held, a.Policy)
			}
		}
		if got := strings.Join(held, " "); got != c.held || p.Held != int64(len(held)) || p.Sent+p.Held != int64(len(c.events)) {
			t.Errorf("%s: held %q, want %q: %+v", name, got, c.held, p)
		}
	}
}

// TestPreviewTellsWhichAlertsAreOver when the last event comes, whether a rule matches that event or not.
func TestPreviewTellsWhichAlertsAreOver(t *testing.T) {
	t.Parallel()
	other := denial(4, 10*minute, 1)
	other.Type = limits.EventWarning
	early := other
	early.Time--
	for name, c := range map[string]struct {
		last Event
		want int64
	}{
		"just before": {early, 0}, "at its end": {other, start + 10*minute}, "an hour later": {denial(4, 60*minute, 1), start + 10*minute},
	} {
		p := preview(t, oneRule(), denial(1, 0, 5), c.last)
		if len(p.Alerts) != 1 || p.Alerts[0].ResolvedAt != c.want || p.Events != 2 {
			t.Errorf("%s: %+v, want it resolved at %d", name, p, c.want)
		}
	}
}
