package policy

import (
	"fmt"
	"maps"
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// TestEquivalentValuesShareOneKey: one subscriber has one counter, and equivalent values have the
// same hash.
func TestEquivalentValuesShareOneKey(t *testing.T) {
	t.Parallel()
	for template, groups := range map[string][][]string{
		"{ip}":           {{"2001:db8::1", "2001:0db8:0:0:1::2", "2001:db8::1%eth0", "2001:db8::/64", "2001:DB8::5/64"}, {"203.0.113.9", "::ffff:203.0.113.9"}, {"2001:db8:0:1::1"}},
		"{ip|hash}":      {{"2001:db8::1", "2001:db8::2"}, {"203.0.113.9", "::ffff:203.0.113.9"}},
		"{a|lower}":      {{"A@b", "a@B"}, {"c"}},
		"{a|lower|hash}": {{"A@b", "a@B"}, {"c"}},
		"{client|ip}":    {{"203.0.113.9"}, {"203.0.113.10"}},
	} {
		tp, err := parseTemplate(template)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]int{}
		for i, g := range groups {
			for _, v := range g {
				key, _, err := tp.render(map[string]string{tp.parts[0].attribute: v}, options.HashKey)
				if other, ok := seen[key]; err != nil || ok && other != i {
					t.Errorf("%s of %s: %q, %v, also that of %v", template, v, key, err, groups[other])
				}
				seen[key] = i
			}
		}
		if len(seen) != len(groups) {
			t.Errorf("%s: keys %v of %v", template, seen, groups)
		}
	}
}

// TestAddressMatchesInAnyNotation, since the client may choose how.
func TestAddressMatchesInAnyNotation(t *testing.T) {
	t.Parallel()
	s := parse(t, `policies:
- {name: four, match: {ip: "203.0.113.*"}, limits: [{name: n, key: "{ip}", limit: 1, window: 1h}]}
- {name: six, match: {ip: "2001:DB8:*"}, exempt: [{ip: "2001:0db8::9"}], limits: [{name: n, key: "{ip}", limit: 1, window: 1h}]}
- {name: mapped, match: {ip: "::ffff:198.51.100.*"}, limits: [{name: n, key: "{ip}", limit: 1, window: 1h}]}
- {name: long, match: {ip: ["2001:0db9:*", "2001:dba::/64"]}, limits: [{name: n, key: "{ip}", limit: 1, window: 1h}]}
- {name: net, match: {ip: [198.18.0.0/15, "2001:dbb::/32", "::ffff:192.0.2.0/121"]}, exempt: {ip: 198.19.5.0/24}, limits: [{name: n, key: "{ip}", limit: 1, window: 1h}]}
- {name: link, match: {ip: "fe80::1"}, limits: [{name: n, key: "{ip}", limit: 1, window: 1h}]}
- {name: host, match: {host: "2001:DB8::*"}, limits: [{name: n, key: "{host}", limit: 1, window: 1h}]}
`)
	for _, c := range []struct{ attribute, value, want string }{
		{"ip", "203.0.113.9", "[four]"}, {"ip", "::ffff:203.0.113.9", "[four]"}, {"ip", "::FFFF:cb00:7109", "[four]"}, {"ip", "203.0.114.9", "[]"},
		{"ip", "2001:db8::1", "[six]"}, {"ip", "2001:0DB8:0:0::1", "[six]"}, {"ip", "2001:db8::1%eth0", "[six]"}, {"ip", "2001:db8::/64", "[six]"},
		{"ip", "2001:DB8:0::9", "[]"}, {"ip", "::ffff:198.51.100.7", "[mapped]"}, {"ip", "2001:0db9:0000:0000:0000:0000:0000:0001", "[long]"},
		{"ip", "2001:DBA:0::/64", "[long]"}, {"ip", "2001:dba::5/64", "[long]"}, {"ip", "fe80::1%eth0", "[link]"},
		{"ip", "198.18.0.1", "[net]"}, {"ip", "::ffff:198.19.255.255", "[net]"}, {"ip", "198.20.0.0", "[]"}, {"ip", "198.19.5.77", "[]"}, {"ip", "198.19.6.77", "[net]"},
		{"ip", "2001:dbb:7::1", "[net]"}, {"ip", "2001:dbb:7::/64", "[net]"}, {"ip", "2001:dbc::1", "[]"}, {"ip", "192.0.2.127", "[net]"}, {"ip", "192.0.2.128", "[]"},
		{"host", "2001:DB8::1", "[host]"}, {"host", "2001:db8::1", "[]"},
	} {
		r, err := s.Resolve(Question{Attributes: map[string]string{c.attribute: c.value}})
		applied := []string{}
		for i := range r.Limits {
			applied = append(applied, r.Limits[i].Policy)
		}
		if got := fmt.Sprint(applied); err != nil || got != c.want {
			t.Errorf("%s %s: %s, %v; want %s", c.attribute, c.value, got, err, c.want)
		}
	}
}

// TestExemptAddressMayBeWrittenOtherwise than the addresses of the match: it is not said that it can never match.
func TestExemptAddressMayBeWrittenOtherwise(t *testing.T) {
	t.Parallel()
	for match, exempt := range map[string]string{"2001:db8:*": "2001:0db8::9", "2001:DB8:*": "2001:db8::9", "203.0.113.9": "::ffff:203.0.113.9"} {
		s := parse(t, fmt.Sprintf("policies: [{name: p, match: {ip: [%q, \"192.0.2.*\"]}, exempt: {ip: %q}, limits: [{name: n, key: k, limit: 1, window: 1h}]}]", match, exempt))
		if r, err := s.Resolve(Question{Attributes: map[string]string{"ip": exempt}}); err != nil || len(r.Limits) != 0 {
			t.Errorf("%s under %s: %+v, %v", exempt, match, r.Limits, err)
		}
	}
}

// TestInvalidAddressesAreRejected: of networks only a /64 is accepted, which one subscriber has.
func TestInvalidAddressesAreRejected(t *testing.T) {
	t.Parallel()
	for _, v := range []string{"", "x", "203.0.113.9/32", "203.0.113.0/24", "2001:db8::/63", "2001:db8::1/128", "::ffff:203.0.113.9/64", "/64"} {
		if got, err := subscriberAddress(v); err == nil {
			t.Errorf("%q is %s", v, got)
		}
	}
}

// TestColonsOfAValueDoNotCutTheIdentifier: without an attribute user, events name who is limited by the last part of the key, and
// two of them are never one.
func TestColonsOfAValueDoNotCutTheIdentifier(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ key, value, want string }{
		{"api:v:{v}", "7", "7"}, {"api:v:{v}", "a:b", "a:b"}, {"a:b:c:{v}", "7", "c:7"}, {"v:{v}", "org:acme:42", "org:acme:42"},
		{"{v}", "acme:eu:42", "acme:eu:42"}, {"user:{v}:daily", "7", "7:daily"}, {"{v}:daily", "7", "7:daily"}, {"api:{w}:{v}", "a:b:c", "a:b:c"},
		{"{w}-{v}", "a:b", "x:y-a:b"}, {"{w}:{v}", "7", "7"}, {"api:v:all", "7", "all"}, {"global", "7", "global"},
		{"ip:{v|ip}", "2603:10:0:9::1", "2603:10:0:9::/64"}, {"ip:{v|ip}", "2a01:10:0:9::1", "2a01:10:0:9::/64"}, {"{v|ip}", "::1", "::/64"},
	} {
		r, err := parse(t, `policies: [{name: p, limits: [{name: n, key: "`+c.key+`", limit: 1, window: 1h}]}]`).
			Resolve(Question{Policy: "p", Attributes: map[string]string{"v": c.value, "w": "x:y"}})
		if err != nil || r.Limits[0].User != c.want {
			t.Errorf("key %s of %s: events name %q, %v; want %q", c.key, c.value, r.Limits[0].User, err, c.want)
		}
	}
	for key, want := range map[string]string{"api:user:7": "7", "api:ip:2001:db8::1": "2001:db8::1", "ip:ab12": "ab12", "global": "global", "a:": "a:", "a:b:": "a:b:"} {
		if got := Identifier(key); got != want {
			t.Errorf("inline key %s: %q; want %q", key, got, want)
		}
	}
}

// TestHashedUserIsNamedByHash: if the key hashes the user, events and usage have only the hash,
// too.
func TestHashedUserIsNamedByHash(t *testing.T) {
	t.Parallel()
	for key, hashed := range map[string]bool{"u:{user|hash}": true, "u:{user|lower|hash}:{route}": true, "{ip|hash}:{user|hash}": true,
		"u:{user}": false, "u:{user|lower}": false, "{ip|hash}": false, "all": false} {
		s := parse(t, `policies: [{name: p, limits: [{name: n, key: "`+key+`", limit: 1, window: 1h}]}]`)
		r, err := s.Resolve(Question{Policy: "p", Attributes: map[string]string{"user": "Ann", "ip": "::1", "route": "chat"}})
		if err != nil {
			t.Fatal(err)
		}
		l := r.Limits[0]
		if hashed && (len(l.User) != 2*hashBytes || !strings.Contains(l.Key, l.User)) || !hashed && l.User != "Ann" {
			t.Errorf("key %s of %s: events speak of user %q", l.Key, key, l.User)
		}
	}
}

// TestMultiByteSeparators: keys stay valid UTF-8, and no two subjects share one.
func TestMultiByteSeparators(t *testing.T) {
	t.Parallel()
	tp, err := parseTemplate("u:{user}→{route}")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string][2]string{}
	for _, pair := range [][2]string{{"a", "b"}, {"a→b", "c"}, {"a", "b→c"}, {"a€", "b"}, {"a%E2%86%92b", "c"}, {"a–", "→"}} {
		key, _, err := tp.render(map[string]string{"user": pair[0], "route": pair[1]}, nil)
		if other, ok := seen[key]; err != nil || ok || !utf8.ValidString(key) {
			t.Errorf("%q: key %q, %v; also that of %q", pair, key, err, other)
		}
		seen[key] = pair
	}
}

// TestDistinctSubjectsHaveDistinctKeys: whatever is between attributes, no two sets of values
// have the same key. Literals for which that would not hold are rejected.
func TestDistinctSubjectsHaveDistinctKeys(t *testing.T) {
	t.Parallel()
	text := func(t *rapid.T, least int, more ...string) string {
		pieces := append([]string{"%", "%25", "2", "5", "A", ":", "3A", "→", "–", "é", "x"}, more...)
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), least, 4).Draw(t, "pieces"), "")
	}
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b", "c"}[:rapid.IntRange(1, 3).Draw(t, "attributes")]
		written, attributes, percent := text(t, 0), map[string]string{}, false
		for i, name := range names {
			last := i == len(names)-1
			literal := text(t, 1)
			written += "{" + name + "}" + literal
			attributes[name] = text(t, 1, literal, "\x92")
			percent = percent || !last && literal[0] == '%'
		}
		tp, err := parseTemplate(written)
		if percent != (err != nil) {
			t.Fatalf("%s: %v", written, err)
		}
		if err != nil {
			return
		}
		key, _, err := tp.render(attributes, nil)
		if err != nil {
			t.Skip(err)
		}
		if all := subjects(tp, key); len(all) != 1 || !maps.Equal(all[0], attributes) {
			t.Fatalf("%s gives %s for %q", written, key, all)
		}
	})
}

// subjects returns all values for which a template renders a key, by cutting the key wherever a literal occurs in it.
func subjects(tp *template, key string) (all []map[string]string) {
	attributes := map[string]string{}
	var cut func(i int, rest string)
	cut = func(i int, rest string) {
		if i == len(tp.parts) {
			if again, _, err := tp.render(attributes, nil); err == nil && again == key {
				all = append(all, maps.Clone(attributes))
			}
			return
		}
		literal := tp.literals[i+1]
		for end := 1; end+len(literal) <= len(rest); end++ {
			value, err := rest[:end], error(nil)
			if i < len(tp.parts)-1 {
				value, err = url.PathUnescape(value)
			}
			if err == nil && strings.HasPrefix(rest[end:], literal) && (i < len(tp.parts)-1 || end+len(literal) == len(rest)) {
				attributes[tp.parts[i].attribute] = value
				cut(i+1, rest[end+len(literal):])
			}
		}
	}
	cut(0, strings.TrimPrefix(key, tp.literals[0]))
	return all
}
