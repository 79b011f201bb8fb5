package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/overrides"
	"pgregory.net/rapid"
)

// given are overrides by policy, limit and subject.
type given map[[3]string]override

type override = overrides.Override

func (g given) Find(policy, name, subject string, _ int64) (override, bool) {
	o, ok := g[[3]string{policy, name, subject}]
	o.Subject = subject
	return o, ok
}

func TestOverrides(t *testing.T) {
	t.Parallel()
	burst := int64(4)
	o := given{
		{"chat", "minute", "gen:ann"}:    {Limit: 6},
		{"chat", "minute", "gen:bob"}:    {Unlimited: true},
		{"chat", "day", "gen:ann"}:       {Limit: 9},
		{"trial", "burst", "u:ann:chat"}: {Burst: &burst},
		{"api", "month", "quota:ann"}:    {Burst: &burst},
		{"chat", "day", "gen:cid"}:       {Window: "1h"},
	}
	s := full(t)
	ask := func(policy, tier, user string) (out []int64) {
		r, err := s.Resolve(Question{Policy: policy, Tier: tier, Now: noon, Overrides: o,
			Attributes: map[string]string{"user": user, "route": "chat"}})
		if err != nil {
			t.Error(err)
		}
		for _, l := range r.Limits {
			out = append(out, l.Limit+l.Burst)
		}
		return out
	}
	for _, c := range []struct{ got, want []int64 }{
		{ask("chat", "", "ann"), []int64{6, 9}},
		{ask("chat", "", "bob"), []int64{50}},
		{ask("chat", "ENTERPRISE", "ann"), []int64{6, 9}}, // unlimited by its tier, and limited by the override
		{ask("chat", "ENTERPRISE", "cid"), []int64{100}},  // another window is no limit
		{ask("trial", "", "ann"), []int64{104}},
		{ask("api", "", "ann"), []int64{1000}}, // the burst is not valid for the limit
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("got %v, want %v", c.got, c.want)
		}
	}
}

// TestOverridesMayBeTheOnlyLimits: only users with an override are limited.
func TestOverridesMayBeTheOnlyLimits(t *testing.T) {
	t.Parallel()
	s := parse(t, `policies: [{name: quota, match: {user: "*"}, limits: [{key: "q:{user}", limit: unlimited, window: month}]}]`)
	o := override{ID: overrides.ID{Policy: "quota", Name: "month", Subject: "q:ann"}, Limit: 25}
	for _, o := range []override{o, {ID: o.ID, Unlimited: true}} {
		if err := s.CheckOverride(&o); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for user, want := range map[string]ExplainedLimit{
		"ann": {Name: "month", Key: "q:ann", Limit: 25, Window: "month", Algorithm: "fixed_window", Override: "q:ann"},
		"bob": {Name: "month", Key: "q:bob", Limit: Unlimited},
		"":    {Name: "month", Limit: Unlimited},
	} {
		q := Question{Now: noon, Overrides: given{{"quota", "month", "q:ann"}: o}, Attributes: map[string]string{"user": user}}
		r, err := s.Resolve(q)
		if limited := user == "ann"; err != nil || limited != (len(r.Limits) == 1) || limited && (r.Limits[0].Limit != 25 || r.Limits[0].Threshold != 2) {
			t.Errorf("%q: %+v, %v", user, r.Limits, err)
		}
		if d := cmp.Diff([]ExplainedLimit{want}, s.Explain(q).Policies[0].Limits); d != "" {
			t.Errorf("%q: %s", user, d)
		}
	}
}

// TestOverridesApplyAfterFactor: an override replaces the amount after the factor, and leaves the
// rest of the limit.
func TestOverridesApplyAfterFactor(t *testing.T) {
	t.Parallel()
	s := parse(t, `policies: [{name: p, limits: [{name: t, key: "f:{user}", limit: 10, burst: 5, window: 1h, algorithm: token_bucket}],
  tiers: {PRO: {t: {limit: unlimited}}, BIG: {t: {limit: unlimited, burst: 1000000000}}}, schedule: [{from: "00:00", to: "24:00", factor: 2}]}]`)
	for tier, want := range map[string]int64{"": 10, "PRO": 10, "BIG": 1_000_000_000} {
		r, err := s.Resolve(Question{Policy: "p", Tier: tier, Now: noon, Overrides: given{{"p", "t", "f:1"}: {Limit: 50}},
			Attributes: map[string]string{"user": "1"}})
		if err != nil || len(r.Limits) != 1 || r.Limits[0].Limit != 50 || r.Limits[0].Burst != want {
			t.Errorf("tier %q: %+v, %v; want a burst of %d", tier, r.Limits, err, want)
		}
	}
}

func TestCheckOverride(t *testing.T) {
	t.Parallel()
	s, burst := full(t), int64(4)
	for _, c := range []struct {
		policy, limit, subject string
		override               override
		want                   string // the error
	}{
		{"chat", "minute", "gen:ann", override{Limit: 6}, ""},
		{"chat", "minute", "g*", override{Unlimited: true}, ""},
		{"chat", "minute", "*", override{Unlimited: true}, ""},
		{"chat", "minute", "gen:acme-*", override{Limit: 6}, ""},
		{"open", "global", "open", override{Limit: 6}, ""},
		{"open", "global", "op*", override{Limit: 6}, ""},
		{"trial", "burst", "u:ann:chat", override{Unlimited: true}, ""},
		{"trial", "burst", "u:ann:chat", override{Burst: &burst}, ""},
		{"chta", "minute", "gen:ann", override{Limit: 6}, `unknown policy "chta"; the policies are `},
		{"chat", "1m", "gen:ann", override{Unlimited: true}, `unknown limit "1m"; policy chat has minute, day`},
		{"api", "month", "quota:ann", override{Burst: &burst}, "burst needs algorithm token_bucket"},
		{"chat", "minute", "user:7", override{Limit: 6}, `no key of this limit matches "user:7"; want a key`},
		{"chat", "minute", "gen:{user}", override{Limit: 6}, `no key of this limit matches "gen:{user}"; want a key`},
		{"trial", "burst", "u:{user}:chat", override{Limit: 6}, `no key of this limit matches "u:{user}:chat"; want a key`},
		{"chat", "minute", "user:*", override{Limit: 6}, `no key of this limit matches "user:*"; want a key`},
		{"trial", "burst", "u:ann", override{Limit: 6}, `no key of this limit matches "u:ann"; want a key`},
		{"open", "global", "open:*", override{Limit: 6}, `no key of this limit matches "open:*"; want a key`},
	} {
		c.override.ID = overrides.ID{Policy: c.policy, Name: c.limit, Subject: c.subject}
		err := s.CheckOverride(&c.override)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%s %s: %v; want %q", c.policy, c.limit, err, c.want)
		}
	}
}

// TestCheckOverrideLooksAtEveryTier: an override is accepted if it is valid in any tier. Otherwise the error is about the limit
// without a tier.
func TestCheckOverrideLooksAtEveryTier(t *testing.T) {
	t.Parallel()
	s, burst := parse(t, `policies: [{name: p, limits: [{name: n, key: k, limit: 9, window: 1h}, {name: m, key: k, limit: 9, window: 1h}],
  tiers: {PRO: {n: {algorithm: token_bucket}, m: {key: "pro"}}}}]`), int64(4)
	for name, want := range map[string]string{"n": "", "m": "burst needs algorithm token_bucket"} {
		err := s.CheckOverride(&override{ID: overrides.ID{Policy: "p", Name: name, Subject: "k"}, Burst: &burst})
		if want == "" && err != nil || want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)) {
			t.Errorf("a burst of %s: %v, want %q", name, err, want)
		}
	}
}

// TestCheckOverrideOfUnlimited: it needs a limit, whatever else it changes.
func TestCheckOverrideOfUnlimited(t *testing.T) {
	t.Parallel()
	s, burst := parse(t, `policies: [{name: p, limits: [{name: n, key: k, limit: unlimited, window: 1h, algorithm: token_bucket}]}]`), int64(4)
	const want = "it is unlimited in the policy file, so an override of its window or burst needs a limit (--limit) as well"
	for _, o := range []override{{Window: "1m"}, {Burst: &burst}, {Window: "1m", Burst: &burst}} {
		o.ID = overrides.ID{Policy: "p", Name: "n", Subject: "k"}
		var field *engine.FieldError
		if err := s.CheckOverride(&o); !errors.As(err, &field) || field.Field != "limit" || field.Message != want {
			t.Errorf("%+v: %v", o, err)
		}
		o.Limit = 6
		if err := s.CheckOverride(&o); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestOverrideBringsAWindow to an unlimited limit that has none. All else that the file says of the limit counts, and is
// validated.
func TestOverrideBringsAWindow(t *testing.T) {
	t.Parallel()
	burst := int64(5)
	for fields, o := range map[string]override{
		"algorithm: fixed_window":                       {Limit: 10, Window: "1h"},
		"algorithm: fixed_window, anchor: first_use":    {Limit: 10, Window: "1h"},
		"algorithm: token_bucket":                       {Limit: 10, Window: "1h", Burst: &burst},
		"algorithm: token_bucket, burst: 5":             {Limit: 10, Window: "1h"},
		"algorithm: fixed_window, timezone: Asia/Tokyo": {Limit: 10, Window: "month"},
		"timezone: Asia/Tokyo":                          {Limit: 10, Window: "month"},
	} {
		o.ID = overrides.ID{Policy: "p", Name: "n", Subject: "k"}
		window := "1h"
		if o.Window == "month" {
			window = "month"
		}
		s, with := parse(t, `policies: [{name: p, limits: [{name: n, key: k, limit: unlimited, `+fields+`}, {name: other, key: o, limit: 1, window: 1m}]}]`),
			parse(t, `policies: [{name: p, limits: [{name: n, key: k, limit: unlimited, window: `+window+`, `+fields+`}]}]`)
		if err := s.CheckOverride(&o); err != nil {
			t.Errorf("%s: %v", fields, err)
			continue
		}
		got, want := overridden(&o, &s.policies[0].base.usual[0].Limit), overridden(&o, &with.policies[0].base.usual[0].Limit)
		if got.Spec() != want.Spec() {
			t.Errorf("%s: %+v; with a window in the file %+v", fields, got.Spec(), want.Spec())
		}
	}
	for _, wrong := range []string{"timezone: Nowhere/X", "burst: 5", "algorithm: token_bucket, anchor: first_use"} {
		if _, err := Parse("test.yaml", []byte(`policies: [{name: p, limits: [{name: n, key: k, limit: unlimited, `+wrong+`}, {name: other, key: o, limit: 1, window: 1m}]}]`), Options{}); err == nil {
			t.Errorf("%s is valid", wrong)
		}
	}
}

// TestRenamedLimitsOfManyVariants: each limit is told of once, and compared once. To compare them in each tier and at each time
// of day took 27 s here, in which the metrics waited.
func TestRenamedLimitsOfManyVariants(t *testing.T) {
	t.Parallel()
	file := func(letter string) *Set {
		text := "policies: [{name: p, limits: ["
		for i := range 16 {
			text += fmt.Sprintf("{name: %s%d, key: k, limit: 5, window: 1m},", letter, i)
		}
		text += "], tiers: {"
		for i := range 63 {
			text += fmt.Sprintf("T%d: {%s0: {limit: 6}}, ", i, letter)
		}
		text += "}, schedule: ["
		for i := range 24 {
			text += fmt.Sprintf("{from: \"%02d:00\", to: \"%02d:00\", factor: 0.5},", i, i+1)
		}
		return parse(t, text+"]}]")
	}
	got := fmt.Sprint(file("b").renamed(file("a")))
	if strings.Count(got, "p/a") != 16 || strings.Count(got, "p/b") != 16 {
		t.Error(got)
	}
}

// TestErrorListsAtMostTwentyNames of those that exist.
func TestErrorListsAtMostTwentyNames(t *testing.T) {
	t.Parallel()
	text := "policies:\n"
	for i := range 23 {
		text += fmt.Sprintf("- {name: p%d, limits: [{name: n, key: k, limit: 1, window: 1h}]}\n", i)
	}
	err := parse(t, text).CheckOverride(&override{ID: overrides.ID{Policy: "q", Name: "n", Subject: "k"}, Limit: 6})
	if !errors.Is(err, ErrUnknownPolicy) || !strings.HasSuffix(err.Error(), ", p18, p19 and 3 more") {
		t.Error(err)
	}
}

// TestCheckOverrideKnowsFilters: a subject that the filters never produce is rejected, with the one that they do produce, unless
// that is a hash.
func TestCheckOverrideKnowsFilters(t *testing.T) {
	t.Parallel()
	const hash = "ca336460f17df79afad8308fa734551d"
	for _, c := range []struct{ key, subject, want string }{ // want is in the error
		{"s:{ip}", "s:203.0.113.9", ""},
		{"s:{ip}", "s:2001:db8::/64", ""},
		{"s:{ip}", "s:203.0.113.*", ""},
		{"s:{ip}:x", "s:2001:db8::/64:x", ""},
		{"s:{ip}", "s:2001:db8::1", `turn it into "s:2001:db8::/64"`},
		{"s:{ip}", "s:2001:DB8::/64", `turn it into "s:2001:db8::/64"`},
		{"s:{ip}", "s:203.0.113.9/64", `turn it into "s:203.0.113.9"`},
		{"s:{client|ip}", "s:::ffff:203.0.113.9", `turn it into "s:203.0.113.9"`},
		{"s:{ip}", "s:ann", `no key of this limit matches "s:ann"; want a key`},
		{"s:{ip}", "s:", `no key of this limit matches "s:"; want a key`},
		{"{ip}:{user}", "2001%3Adb8%3A%3A/64:ann", ""},
		{"{ip}:{user}", "2001%3Adb8%3A%3A1:ann", `turn it into "2001%3Adb8%3A%3A/64:ann"`},
		{"{ip}:{user}", "2001:db8::/64:ann", "want a key"},
		{"s:{user}", "s:", `no key of this limit matches "s:"; want a key`},
		{"s:{email|lower}", "s:a@b.example", ""},
		{"s:{email|lower}", "s:A@B.example", `turn it into "s:a@b.example"`},
		{"{email|lower}:{user}", "a@b.example:Ann:b", ""},
		{"{email|lower}:{user}", "a%3A@b.example:Ann", ""},
		{"{email|lower}:{user}", "A@b.example:Ann", `turn it into "a@b.example:Ann"`},
		{"{email|lower}:{user}", "a%zz@b.example:Ann", "want a key"},
		{"s:{ip|hash}", "s:" + hash, ""},
		{"s:{ip|hash}:x", "s:" + hash + ":x", ""},
		{"{ip|hash}:{user}", hash + ":Ann", ""},
		{"s:{ip|hash}", "s:203.0.113.9", "want a key"},
		{"s:{ip|hash}", "s:" + hash + "0", "want a key"},
		{"s:{ip|hash}", "s:" + strings.ToUpper(hash), "as 32 hex digits"},
		{"{ip|hash}:{user}", "203.0.113.9:Ann", "want a key"},
		{"s:{h|hash}", "s:*", ""},
		{"s:{h|hash}", "s:ca3*1d", ""},
		{"s:{h|hash}", "*:" + hash, ""},
		{"s:{h|hash}", "*" + hash[8:], ""},
		{"s:{h|hash}", "s:*@b.example", "want a key"},
		{"s:{h|hash}", "s:ann*", "want a key"},
		{"s:{h|hash}:{user}", "s:ann*", "want a key"},
		{"s:{h|hash}:{user}", "s:" + hash + ":ann*", ""},
		{"s:{email|lower}", "s:*@b.example", ""},
		{"s:{email|lower}", "s:*@B.example", `turn it into "s:*@b.example"`},
		{"S:{email|lower}:X", "S:Ann*@B.example:X", `turn it into "S:ann*@b.example:X"`},
		{"s:{email|lower}:{user}", "s:Ann:Bob*", `turn it into "s:ann:Bob*"`},
		{"s:{email|lower}:{h|hash}", "s:Ann:bob@b.example*", "want a key"}, // and not the text in clear
		{"s:{ip}", "s:2001:db8:*", ""},
		{"s:{ip}", "s:*::/64", ""},
		{"s:{ip}", "s:2001:DB8:*", `turn it into "s:2001:db8:*"`},
		{"{ip}:{user}", "2001%3Adb8%3A*", ""},
		{"s:{ip}", "s:ann*", "want a key"},
		{"s:{ip}", "*ann", "want a key"},
	} {
		s := parse(t, `policies: [{name: p, limits: [{name: n, key: "`+c.key+`", limit: 1, window: 1h}]}]`)
		err := s.CheckOverride(&override{ID: overrides.ID{Policy: "p", Name: "n", Subject: c.subject}, Limit: 6})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s under %s: %v; want %q", c.subject, c.key, err, c.want)
		}
	}
}

// TestEveryRenderedKeyIsValidSubject: every key that a template renders is accepted as a subject,
// whatever its separators.
func TestEveryRenderedKeyIsValidSubject(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"{v}", "{v}:{w}", "{v|lower}:{w|lower}:", "s%{v}:%{w}%", "{v}0{w}", "{v}Api{w}", "{v|lower}é{w}",
		"{v|hash}:{w}", "{v}:{w|hash}", "{v}: :{w}", "{ip}:{v}", "{v}:{ip}", "{ip|lower}/{w|lower|hash}-", "{v}5{ip}6"} {
		k, err := parseTemplate(key)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range []string{"a", "A:B", "100%", "%25", "a0A", "Éé", "::1", "/64", "a: :b", "İ", "5%5", "s/64/64"} {
			for _, ip := range []string{"203.0.113.9", "2001:DB8::1", "::ffff:1.2.3.4", "fe80::1%eth0"} {
				subject, _, err := k.render(map[string]string{"v": v, "w": v + "w", "ip": ip}, []byte("secret"))
				if err != nil {
					t.Fatal(err)
				}
				if ok, instead := k.admits(subject); !ok {
					t.Errorf("%s gives %s, and refuses it for %q", key, subject, instead)
				}
			}
		}
	}
}

// TestGlobOverRenderedKeyIsValidSubject: a key that a template renders, with any two parts of it replaced by a star, is
// accepted as a subject, because it matches that key.
func TestGlobOverRenderedKeyIsValidSubject(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		separator := rapid.SampledFrom([]string{"a", "A", "f", "F", "0", ":", ".", "/", "-", "é", "É"})
		literal := rapid.StringOfN(rapid.SampledFrom([]rune("aAfF09:./-@éÉ%|")), 0, 3, -1)
		text, attributes := literal.Draw(t, "literal"), map[string]string{}
		for i := range rapid.IntRange(1, 3).Draw(t, "attributes") {
			if i > 0 {
				text += separator.Draw(t, "separator") + literal.Draw(t, "literal")
			}
			name := string(rune('u' + i))
			filter := rapid.SampledFrom([]string{"", "|lower", "|ip", "|ip|lower", "|hash", "|lower|hash"}).Draw(t, "filter")
			text += "{" + name + filter + "}"
			value := rapid.StringOfN(rapid.SampledFrom([]rune("aAfFzZ09:./-@éÉİǅß%*")), 1, 8, -1)
			if strings.Contains(filter, "ip") {
				value = genAddress
			}
			attributes[name] = value.Draw(t, "value")
		}
		text += literal.Draw(t, "literal")
		k, err := parseTemplate(text)
		if err != nil {
			t.Fatal(err)
		}
		key, _, err := k.render(attributes, []byte("secret"))
		if err != nil {
			t.Fatal(err)
		}
		runes := []rune(key)
		glob := ""
		for range rapid.IntRange(1, 2).Draw(t, "stars") {
			from := rapid.IntRange(0, len(runes)).Draw(t, "from")
			glob += string(runes[:from]) + "*"
			runes = runes[rapid.IntRange(from, len(runes)).Draw(t, "to"):]
		}
		glob += string(runes)
		if ok, instead := k.admits(glob); !ok {
			t.Fatalf("%s gives %s, and refuses %s for %q", text, key, glob, instead)
		}
	})
}

// genAddress draws IP addresses as clients spell them.
var genAddress = rapid.Custom(func(t *rapid.T) string {
	bytes := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 0, 1, 0x1a, 0xff}), 16, 16).Draw(t, "bytes")
	if rapid.Bool().Draw(t, "IPv4") {
		bytes = bytes[:4]
	}
	a, _ := netip.AddrFromSlice(bytes)
	return strings.ToUpper(a.String())
})

// TestExplainOverrides: an override that was not used must not be shown as if it had changed the limit.
func TestExplainOverrides(t *testing.T) {
	t.Parallel()
	burst := int64(4)
	o := given{{"api", "month", "quota:ann"}: {Burst: &burst}, {"chat", "minute", "gen:ann"}: {Limit: 6}, {"chat", "day", "gen:ann"}: {Unlimited: true}}
	e := full(t).Explain(Question{Now: noon, Overrides: o, Attributes: map[string]string{"user": "ann", "endpoint": "/x", "route": "chat"}})
	var got []string
	for _, p := range e.Policies {
		for _, l := range p.Limits {
			got = append(got, fmt.Sprintf("%s %v override %q left out %q", l.Name, l.Limit, l.Override, l.LeftOut))
		}
	}
	want := []string{`minute 6 override "gen:ann" left out ""`, `day unlimited override "gen:ann" left out ""`,
		`month 1000 override "" left out "quota:ann"`, `burst 100 override "" left out ""`}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
