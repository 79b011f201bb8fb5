package policy

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/seed503877ad/limits/internal/yamlfile"
)

// template renders the key of a limit: literals[0] parts[0] literals[1] parts[1] ... literals[n].
type template struct {
	text     string
	literals []string
	parts    []part
}

// part is an attribute in a template.
type part struct {
	attribute       string
	lower, ip, hash bool
	// escape is the character that follows the value in the key; empty for the last part. It is escaped in the value, so
	// that {a}:{b} never renders the same key for a="x:y" b="z" as for other values. All bytes of the character are escaped,
	// so that the rest is valid UTF-8.
	escape string
}

const (
	maxKeyBytes = 256
	// ipAttribute is the attribute that always has the filter ip.
	ipAttribute = "ip"
	// userAttribute is the attribute that events and usage name.
	userAttribute = "user"
	// hashBytes is how much of the HMAC a key contains: 128 bits, so that no two subjects collide by chance.
	hashBytes = 16
)

var filterNames = []string{"lower", "ip", "hash"}

// parseTemplate parses a template. The error says what is wrong and how to correct it.
func parseTemplate(text string) (*template, error) {
	t := &template{text: text}
	rest := text
	for {
		open := strings.IndexAny(rest, "{}")
		if open < 0 {
			break
		}
		if rest[open] == '}' {
			return nil, fmt.Errorf("%s has a } without a {; write attributes as {user}", yamlfile.Quote(text))
		}
		end := strings.IndexAny(rest[open+1:], "{}")
		if end < 0 || rest[open+1+end] == '{' {
			return nil, fmt.Errorf("%s has a { without a }; write attributes as {user}", yamlfile.Quote(text))
		}
		p, err := parsePart(rest[open+1 : open+1+end])
		if err != nil {
			return nil, err
		}
		t.literals, t.parts = append(t.literals, rest[:open]), append(t.parts, p)
		rest = rest[open+end+2:]
	}
	t.literals = append(t.literals, rest)
	for i := range t.parts[:max(0, len(t.parts)-1)] {
		next := t.literals[i+1]
		if next == "" {
			return nil, fmt.Errorf("%s has {%s} and {%s} with nothing between them; put a separator such as : between them",
				yamlfile.Quote(text), t.parts[i].attribute, t.parts[i+1].attribute)
		}
		// A literal that begins with any other character can be told from the value before it: the value contains that
		// character only in escape sequences.
		if next[0] == '%' {
			return nil, fmt.Errorf("%s has a %% right after {%s}, which could be mistaken for an escape, so two subjects could share a counter; put another separator such as : before it",
				yamlfile.Quote(text), t.parts[i].attribute)
		}
		_, n := utf8.DecodeRuneInString(next)
		t.parts[i].escape = next[:n]
	}
	return t, t.check()
}

// alertsPrefix begins the keys that the throttle of alerts charges. A policy has counters of its own under any key, but in
// lists of keys they could not be told from the throttle's. An attribute may still begin such a key.
const alertsPrefix = "limits.alerts:"

// check validates the fixed text of the template.
func (t *template) check() error {
	if strings.HasPrefix(t.literals[0], alertsPrefix) {
		return fmt.Errorf("%s begins with %s, which is reserved for the throttle of alerts; use another prefix, such as alerts",
			yamlfile.Quote(t.text), alertsPrefix)
	}
	n := 0
	for _, l := range t.literals {
		n += len(l)
	}
	most := maxKeyBytes - min(len(t.parts), 1) // an attribute is never empty
	if n > most {
		return fmt.Errorf("the key has %d bytes of fixed text; want at most %d", n, most)
	}
	return nil
}

func parsePart(text string) (part, error) {
	words := strings.Split(text, "|")
	p := part{attribute: words[0]}
	if err := checkAttribute(p.attribute); err != nil {
		return p, err
	}
	for _, filter := range words[1:] {
		switch filter {
		case "lower":
			p.lower = true
		case "ip":
			p.ip = true
		case "hash":
			p.hash = true
		default:
			return p, fmt.Errorf("unknown filter %s in {%s}%s; want lower, ip, hash", yamlfile.Quote(filter), text, yamlfile.DidYouMean(filter, filterNames))
		}
		if p.hash && filter != "hash" {
			return p, fmt.Errorf("filter %s comes after hash in {%s}; put hash last", filter, text)
		}
	}
	if distinct := slices.Compact(slices.Sorted(slices.Values(words[1:]))); len(distinct) != len(words)-1 {
		return p, fmt.Errorf("a filter is given twice in {%s}; remove one", text)
	}
	p.ip = p.ip || p.attribute == ipAttribute
	return p, nil
}

// needsHash reports whether the template needs the hash key.
func (t *template) needsHash() bool {
	return slices.ContainsFunc(t.parts, func(p part) bool { return p.hash })
}

// missing returns an attribute of the template that is missing or empty; "" if there is none. An empty value identifies
// nobody: all requests with it would share a counter.
func (t *template) missing(attributes map[string]string) string {
	for i := range t.parts {
		if a := t.parts[i].attribute; attributes[a] == "" {
			return a
		}
	}
	return ""
}

// render returns the key for some attributes, and where the identifier in it begins. The error is an *[AttributeError] without
// policy and limit.
func (t *template) render(attributes map[string]string, hashKey []byte) (text string, identifier int, err error) {
	var s scope
	if len(t.parts) == 0 {
		s.read(t.text, 0)
		return t.text, s.end, nil
	}
	key := make([]byte, 0, 96)
	for i := range t.parts {
		p := &t.parts[i]
		value, err := p.filter(attributes[p.attribute], hashKey)
		if err != nil {
			return "", 0, err
		}
		s.read(t.literals[i], len(key))
		key = append(key, t.literals[i]...)
		key = p.appendEscaped(key, value)
	}
	key = append(key, t.literals[len(t.parts)]...)
	if len(key) > maxKeyBytes {
		return "", 0, &AttributeError{Attribute: t.longest(attributes), Problem: fmt.Sprintf(
			"makes the key %d bytes long, above the maximum of %d; shorten it, or have the policy hash it", len(key), maxKeyBytes)}
	}
	return string(key), s.end, nil
}

// scope finds the end of "scope:resource:" in the fixed text of a key: two colons, or one. Those of values, such as IPv6
// addresses, do not count.
type scope struct{ colons, end int }

// read takes the next fixed text, which begins at that place in the key.
func (s *scope) read(text string, at int) {
	for i := 0; i < len(text) && s.colons < 2; i++ {
		if text[i] == ':' {
			s.colons++
			s.end = at + i + 1
		}
	}
}

// Identifier is the part of a key "scope:resource:identifier" that names who is limited: all after the second colon, or after
// the only one, and the whole key if that is empty. It is for keys that no policy made.
func Identifier(key string) string {
	var s scope
	s.read(key, 0)
	return identifierFrom(key, s.end)
}

func identifierFrom(key string, begin int) string { return cmp.Or(key[begin:], key) }

// user returns the user that events and usage name, if there is the attribute user: that or, if the key hashes it, its hash, so
// that the attribute itself is neither stored nor sent. The key must have been rendered before.
func (t *template) user(attributes map[string]string, hashKey []byte) string {
	user := attributes[userAttribute]
	for i := range t.parts {
		if p := &t.parts[i]; p.hash && p.attribute == userAttribute {
			user, _ = p.filter(user, hashKey) // did not fail when the key was rendered
			break
		}
	}
	return user
}

// longest returns the attribute with the longest value.
func (t *template) longest(attributes map[string]string) (name string) {
	for _, p := range t.parts {
		if name == "" || len(attributes[p.attribute]) > len(attributes[name]) {
			name = p.attribute
		}
	}
	return name
}

// filter applies the filters to a value.
func (p *part) filter(v string, hashKey []byte) (string, error) {
	if p.ip {
		address, err := subscriberAddress(v)
		if err != nil {
			return "", &AttributeError{Attribute: p.attribute, Problem: "is not an IP address; want one such as 203.0.113.9 or 2001:db8::1, or a /64"}
		}
		v = address
	}
	if p.lower {
		v = strings.ToLower(v)
	}
	if p.hash {
		mac := hmac.New(sha256.New, hashKey)
		mac.Write([]byte(v))
		v = hex.EncodeToString(mac.Sum(nil)[:hashBytes])
	}
	return v, nil
}

// subscriberAddress returns the canonical form of an IPv4 address, and the /64 network of an IPv6 address, which is the least
// that one subscriber has. It accepts a /64 network, too.
func subscriberAddress(v string) (string, error) {
	if p, err := netip.ParsePrefix(v); err == nil && p.Bits() == 64 && !p.Addr().Is4In6() {
		return p.Masked().String(), nil
	}
	a, err := netip.ParseAddr(v)
	if err != nil {
		return "", err
	}
	if a = a.Unmap(); a.Is4() {
		return a.String(), nil
	}
	network, err := a.Prefix(64) // without the zone
	if err != nil {
		return "", err
	}
	return network.String(), nil
}

// hexDigits are the digits of an escape sequence such as %3A.
const hexDigits = "0123456789ABCDEF"

// appendEscaped appends a value and percent-encodes the character that ends it, and every %.
func (p *part) appendEscaped(b []byte, v string) []byte {
	if p.escape == "" {
		return append(b, v...)
	}
	for len(v) > 0 {
		n := 1
		switch {
		case strings.HasPrefix(v, p.escape):
			n = len(p.escape)
		case v[0] != '%':
			b, v = append(b, v[0]), v[1:]
			continue
		}
		for _, c := range []byte(v[:n]) {
			b = append(b, '%', hexDigits[c>>4], hexDigits[c&15])
		}
		v = v[n:]
	}
	return b
}
