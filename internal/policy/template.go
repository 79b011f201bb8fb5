package policy

import (
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

// template is the key of a limit: literal[0] part[0] literal[1] part[1] … literal[n].
type template struct {
	text     string
	literals []string
	parts    []part
}

// part is an attribute in a template.
type part struct {
	attribute       string
	lower, ip, hash bool
	// escape is the character that ends the value in the key, empty for the last part. It is escaped in the value, so that
	// {a}:{b} gives the key of a="x:y" b="z" to no other a and b; whole, so that what is left is valid UTF-8.
	escape string
}

const (
	maxKeyBytes = 256
	// ipAttribute is canonical in every key.
	ipAttribute = "ip"
	// userAttribute is whom events and usage speak of.
	userAttribute = "user"
	// hashBytes is how much of the HMAC a key holds: 128 bits, which no two subjects share by chance.
	hashBytes = 16
)

var filterNames = []string{"lower", "ip", "hash"}

// parseTemplate reads a template; the error says what is wrong and what to do.
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
			return nil, fmt.Errorf("%s has {%s} and {%s} side by side; put a separator such as : between them",
				yamlfile.Quote(text), t.parts[i].attribute, t.parts[i+1].attribute)
		}
		// All other literals are told from a value: what is escaped is read whole, and outside of that the first character of
		// the literal is not in the value.
		if next[0] == '%' {
			return nil, fmt.Errorf("%s has a %% right behind {%s}, which is how keys escape, so that two subjects could share a counter; put another separator such as : before it",
				yamlfile.Quote(text), t.parts[i].attribute)
		}
		_, n := utf8.DecodeRuneInString(next)
		t.parts[i].escape = next[:n]
	}
	return t, t.check()
}

// alertsPrefix begins the keys that the throttle of alerts charges. A policy's counters there would raise no alerts, and one that is
// shared with the throttle would hold somebody's back.
const alertsPrefix = "limits.alerts:"

// check bounds what stands in the file already.
func (t *template) check() error {
	if strings.HasPrefix(t.literals[0], alertsPrefix) {
		return fmt.Errorf("%s begins with %s, as the keys of the alerts' throttle do; begin it with another word, such as alerts",
			yamlfile.Quote(t.text), alertsPrefix)
	}
	n := 0
	for _, l := range t.literals {
		n += len(l)
	}
	if n >= maxKeyBytes || len(t.parts) == 0 && n > maxKeyBytes {
		return fmt.Errorf("the key has %d bytes before any attribute; want fewer than %d", n, maxKeyBytes)
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
			return p, fmt.Errorf("filter %s stands behind hash in {%s}; put hash last", filter, text)
		}
	}
	if distinct := slices.Compact(slices.Sorted(slices.Values(words[1:]))); len(distinct) != len(words)-1 {
		return p, fmt.Errorf("a filter is given twice in {%s}; remove one", text)
	}
	p.ip = p.ip || p.attribute == ipAttribute
	return p, nil
}

// needsHash tells whether the template needs the hash key.
func (t *template) needsHash() bool {
	return slices.ContainsFunc(t.parts, func(p part) bool { return p.hash })
}

// missing names an attribute of the template that is not given, or empty. An empty value is no identity: all who have
// it would share a counter.
func (t *template) missing(attributes map[string]string) string {
	for i := range t.parts {
		if a := t.parts[i].attribute; attributes[a] == "" {
			return a
		}
	}
	return ""
}

// render gives the key. The error is an *[AttributeError] without its policy.
func (t *template) render(attributes map[string]string, hashKey []byte) (string, error) {
	if len(t.parts) == 0 {
		return t.text, nil
	}
	room := make([]byte, 0, 96)
	for i := range t.parts {
		p := &t.parts[i]
		value, err := p.value(attributes[p.attribute], hashKey)
		if err != nil {
			return "", err
		}
		room = append(room, t.literals[i]...)
		room = p.appendEscaped(room, value)
	}
	room = append(room, t.literals[len(t.parts)]...)
	if len(room) > maxKeyBytes {
		return "", &AttributeError{Attribute: t.longest(attributes), Problem: fmt.Sprintf(
			"makes the key %d bytes long, and at most %d are taken; shorten it, or let the policy hash it", len(room), maxKeyBytes)}
	}
	return string(room), nil
}

// user gives whom the events and the usage of a limit that has a key speak of: the attribute user, and where the key hashes it,
// the hash, so that the attribute itself is stored and sent nowhere.
func (t *template) user(attributes map[string]string, hashKey []byte) string {
	user := attributes[userAttribute]
	for i := range t.parts {
		if p := &t.parts[i]; p.hash && p.attribute == userAttribute {
			user, _ = p.value(user, hashKey) // which made the key
			break
		}
	}
	return user
}

func (t *template) longest(attributes map[string]string) (name string) {
	for _, p := range t.parts {
		if name == "" || len(attributes[p.attribute]) > len(attributes[name]) {
			name = p.attribute
		}
	}
	return name
}

// value applies the filters.
func (p *part) value(v string, hashKey []byte) (string, error) {
	if p.ip {
		address, err := canonical(v)
		if err != nil {
			return "", &AttributeError{Attribute: p.attribute, Problem: "is no IP address; want one such as 203.0.113.9 or 2001:db8::1, or a /64"}
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

// canonical gives an IPv4 address as it is, and the /64 of an IPv6 address: the least that one subscriber has. A /64 is itself.
func canonical(v string) (string, error) {
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
	network, err := a.WithZone("").Prefix(64)
	if err != nil {
		return "", err
	}
	return network.String(), nil
}

// hexits are what an escape is written with, behind a %.
const hexits = "0123456789ABCDEF"

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
			b = append(b, '%', hexits[c>>4], hexits[c&15])
		}
		v = v[n:]
	}
	return b
}
