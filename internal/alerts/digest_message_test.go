package alerts

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/seed503877ad/limits"
)

// heldAlert is an alert that was held for user 7.
func heldAlert(policy, key string, denied, first, last int64, s Severity) *Alert {
	return &Alert{User: "7", Policy: policy, Key: key, Denied: denied, Events: 1, FirstAt: start + first, LastAt: start + last, Severity: s,
		Type: limits.EventExceeded}
}

// TestDigestSumsItsAlerts: the times that enclose all, the highest severity, policies by their alerts, and keys by their
// denials.
func TestDigestSumsItsAlerts(t *testing.T) {
	t.Parallel()
	got := summarize("d", "7", []*Alert{
		heldAlert("b", "k1", 1, 2*minute, 9*minute, Warning), heldAlert("a", "k2", 9, minute, 3*minute, Critical),
		heldAlert("b", "k1", 2, 5*minute, 6*minute, Info), heldAlert("", "k3", 9, 2*minute, 4*minute, Info),
	})
	want := limits.AlertDigest{Digest: "d", User: "7", Severity: "critical", Alerts: 4, Denied: 21, FirstAt: start + minute, LastAt: start + 9*minute,
		Policies: []limits.DigestCount{{Name: "b", Alerts: 2, Denied: 3}, {Name: "", Alerts: 1, Denied: 9}, {Name: "a", Alerts: 1, Denied: 9}},
		Keys:     []limits.DigestCount{{Name: "k2", Alerts: 1, Denied: 9}, {Name: "k3", Alerts: 1, Denied: 9}, {Name: "k1", Alerts: 2, Denied: 3}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if text := digestText(&got, 0); !strings.Contains(text, "\npolicy (inline): 1 alert, 9 denials\n") {
		t.Error(text)
	}
}

// TestDigestIsOfTheTimeWhenItIsMade, on each channel, and its id is the same on channels that are told the same.
func TestDigestIsOfTheTimeWhenItIsMade(t *testing.T) {
	t.Parallel()
	s := New(Config{Rules: func() *Rules { return parseGood(t, "rules: [{name: a}]") }, NewID: func() string { return "d" }})
	both, one := heldAlert("p", "k", 1, 0, 0, Info), heldAlert("p", "k", 1, 0, 0, Info)
	both.ID, both.Channels, one.ID, one.Channels = "1", []string{"log", "nats"}, "2", []string{"log"}
	for want, held := range map[string][]Alert{"d.digest/log d.digest/nats": {*both}, "d.digest/log d.digest-2/nats": {*both, *one}} {
		made, err := s.digest("7", held, start+minute, start+minute, nil)
		var ids []string
		for i := range made.Deliveries {
			d := &made.Deliveries[i]
			if ids = append(ids, d.ID); d.Message.Time != start+minute || d.Message.User != "7" || d.Message.Kind != KindDigest {
				t.Errorf("%+v", d.Message)
			}
		}
		if got := strings.Join(ids, " "); err != nil || got != want || made.Name != "d" {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
}

// TestDigestListsTenPoliciesAndKeys in its text, and says how many more there are.
func TestDigestListsTenPoliciesAndKeys(t *testing.T) {
	t.Parallel()
	for n, more := range map[int][2]string{10: {}, 11: {"1 more policy", "1 more key"}, 150: {"140 more policies", "140 more keys"}} {
		var all []*Alert
		for i := range n {
			all = append(all, heldAlert(fmt.Sprintf("p%03d", i), fmt.Sprintf("k%03d", i), 1, 0, 0, Info))
		}
		m, err := (&Rules{}).digestMessage("d", "7", all)
		if err != nil {
			t.Fatal(err)
		}
		if p, k := strings.Count(m.Text, "\npolicy p"), strings.Count(m.Text, "\ne.g. key k"); p != 10 || k != 10 || more[0] == "" && strings.Contains(m.Text, "…") ||
			more[0] != "" && !(strings.Contains(m.Text, "\n… and "+more[0]+"\n") && strings.HasSuffix(m.Text, "\n… and "+more[1])) {
			t.Errorf("of %d it lists %d policies and %d keys:\n%s", n, p, k, m.Text)
		}
		if p := strings.Count(string(m.Data), `"name":"p`); p != min(n, digestPolicies) {
			t.Errorf("of %d its data has %d policies", n, p)
		}
		if k := strings.Count(string(m.Data), `"name":"k`); k != digestKeys {
			t.Errorf("of %d its data has %d keys", n, k)
		}
	}
}

// TestChannelsOfAlert: its own if the file has them all, the rule's in addition if one is missing, and the rule's alone if all
// are, or the built-in ones if the rule is gone too.
func TestChannelsOfAlert(t *testing.T) {
	t.Parallel()
	r := Rules{Channels: builtInChannels()}
	for _, name := range []string{"a", "b", "c"} {
		r.Channels = append(r.Channels, ChannelSpec{Name: name})
	}
	r.Rules = []Rule{{Name: "rule", Channels: []string{"b", "c"}}}
	for _, c := range []struct{ rule, own, want string }{
		{"rule", "a", "a"}, {"rule", "a b", "a b"}, {"rule", "a old", "a old b c"}, {"rule", "b old", "b old c"}, {"rule", "old older", "b c"},
		{"gone", "a", "a"}, {"gone", "a old", "a old"}, {"gone", "old", "nats log"},
	} {
		a := Alert{GroupID: GroupID{Rule: c.rule}, Channels: strings.Fields(c.own)}
		if got := strings.Join(r.channelsOf(&a), " "); got != c.want || strings.Join(a.Channels, " ") != c.own {
			t.Errorf("of %s with %s: %s, want %s", c.rule, c.own, got, c.want)
		}
	}
	if got := strings.Join(r.Rules[0].Channels, " "); got != "b c" {
		t.Errorf("the rule's channels became %s", got)
	}
}

// TestSilenceMatchesAllItsPatterns, and one that is empty matches everything.
func TestSilenceMatchesAllItsPatterns(t *testing.T) {
	t.Parallel()
	a := &Alert{GroupID: GroupID{Rule: "heavy"}, Policy: "api", Key: "api:user:7", User: "7"}
	for _, c := range []struct {
		silence Silence
		want    bool
	}{
		{Silence{}, true}, {Silence{Rule: "heavy"}, true}, {Silence{Rule: "h*", Policy: "a*", Key: "api:*", User: "*"}, true},
		{Silence{Rule: "heav"}, false}, {Silence{Policy: "ap"}, false}, {Silence{Key: "user"}, false}, {Silence{User: "70"}, false},
		{Silence{Rule: "light", User: "7"}, false},
	} {
		if got := c.silence.matches(a); got != c.want {
			t.Errorf("%+v: %t", c.silence, got)
		}
	}
}

// TestDigestTellsOfAlertsOfSeveral: an alert that may be of several users is held for the first of them.
func TestDigestTellsOfAlertsOfSeveral(t *testing.T) {
	t.Parallel()
	r := parseGood(t, "rules: [{name: one}, {name: all, groupBy: [policy]}]")
	one, all, nobody, gone := heldAlert("p", "k", 1, 0, 0, Info), heldAlert("p", "k", 18, 0, 0, Info), heldAlert("p", "k", 1, 0, 0, Info), heldAlert("p", "k", 1, 0, 0, Info)
	one.Rule, all.Rule, nobody.Rule, gone.Rule = "one", "all", "all", "gone"
	nobody.User = ""
	m, err := r.digestMessage("d", "7", []*Alert{one, all, nobody, gone})
	if err != nil || !strings.Contains(m.Text, ".\nNot of this user alone: 1 alert.\n") {
		t.Errorf("%q, %v", m.Text, err)
	}
	if m, err = r.digestMessage("d", "7", []*Alert{one}); err != nil || strings.Contains(m.Text, "alone") {
		t.Errorf("%q, %v", m.Text, err)
	}
}
