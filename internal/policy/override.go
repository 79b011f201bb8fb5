package policy

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/glob"
	"github.com/seed503877ad/limits/internal/overrides"
	"github.com/seed503877ad/limits/internal/yamlfile"
)

// Finder finds the override of a policy's limit for a key that is in force at now, in Unix milliseconds.
type Finder interface {
	Find(policy, name, subject string, now int64) (overrides.Override, bool)
}

// applyOverride changes a limit as an override says. limited is false if the limit is lifted.
//
// used is false, and the limit unchanged, if the result would not be valid, such as a burst for a limit whose algorithm was
// changed in the file. The file and the overrides change independently, and a request needs an answer in any case.
func applyOverride(o *overrides.Override, l *engine.Limit) (limited, used bool) {
	if o.Unlimited {
		return false, true
	}
	other := overridden(o, l)
	if used = other.Validate() == nil; used {
		*l = other
	}
	return l.Limit != 0, used
}

// overridden returns a copy of a limit with the fields of an override.
func overridden(o *overrides.Override, l *engine.Limit) engine.Limit {
	changed := *l
	if o.Limit != 0 {
		changed.Limit = o.Limit
	}
	if o.Burst != nil {
		changed.Burst = *o.Burst
	}
	if o.Window != "" {
		// It was validated when it was set. If it does not parse nevertheless, the window of the file applies.
		if w, err := engine.ParseWindow(o.Window); err == nil {
			changed.Window = w
		}
	}
	return changed
}

// ErrUnknownLimit says that the policy has no limit with the name.
var ErrUnknownLimit = errors.New("unknown limit")

// CheckOverride returns nil if an override can take effect: the limit exists and, in some tier or at some time of day, can
// have the subject as its key and is valid with the changes. The error is ErrUnknownPolicy or ErrUnknownLimit, with the
// existing names, or an *[engine.FieldError].
func (s *Set) CheckOverride(o *overrides.Override) error {
	p := s.byName[o.Policy]
	if p == nil {
		return s.unknown(o.Policy)
	}
	err := fmt.Errorf("%w %q; policy %s has %s", ErrUnknownLimit, o.Name, p.name, yamlfile.FirstNames(p.base.usual, func(l limit) string { return l.name }))
	for limits := range p.variants {
		for i := range limits {
			if limits[i].name != o.Name {
				continue
			}
			problem := checkOverride(o, &limits[i])
			if problem == nil {
				return nil
			}
			if errors.Is(err, ErrUnknownLimit) {
				err = problem // of the first variant, which is the one without a tier
			}
		}
	}
	return err
}

// unknown returns an ErrUnknownPolicy with the existing names.
func (s *Set) unknown(name string) error {
	return fmt.Errorf("%w %q; the policies are %s", ErrUnknownPolicy, name, yamlfile.FirstNames(s.policies, func(p *policy) string { return p.name }))
}

// checkOverride returns nil if a limit can have the subject as its key and is valid with the changes.
func checkOverride(o *overrides.Override, l *limit) error {
	if ok, instead := l.key.admits(o.Subject); !ok {
		subject, text := fmt.Sprintf("%.80q", o.Subject), l.key.text
		if l.key.needsHash() {
			subject = "the subject" // which may have in clear what is to be hashed: errors are in statistics
			text += fmt.Sprintf(", in which a hashed value appears as %d hex digits", 2*hashBytes)
		}
		return subjectError(subject, instead, text)
	}
	if o.Unlimited {
		return nil
	}
	other := overridden(o, &l.Limit)
	if other.Limit == 0 {
		return &engine.FieldError{Field: "limit",
			Message: "it is unlimited in the policy file, so an override of its window or burst needs a limit (--limit) as well"}
	}
	return other.Validate()
}

// subjectError says that no key of a limit matches the subject, as it may be shown, and which key it has instead, if that is
// known.
func subjectError(subject, instead, template string) error {
	want := "want a key that the template produces, or a pattern with * for such keys"
	if instead != "" {
		want = fmt.Sprintf("the filters of the template turn it into %q", instead)
	}
	return &engine.FieldError{Field: "subject", Message: fmt.Sprintf("no key of this limit matches %s; %s; the template is %s", subject, want, template)}
}

// admits reports whether the template can render a key that matches the subject, which may be a glob. If it cannot because
// of the filters, instead is the key that they make of the subject. A subject with an attribute in braces is the template
// itself, given by mistake.
func (t *template) admits(subject string) (ok bool, instead string) {
	switch {
	case slices.ContainsFunc(t.parts, func(p part) bool { return strings.Contains(subject, "{"+p.attribute) }):
		return false, ""
	case len(t.parts) == 0:
		return glob.Match(subject, t.text), ""
	case glob.Is(subject):
		return t.admitsGlob(subject)
	case slices.ContainsFunc(t.parts, func(p part) bool { return p.escape != "" && strings.Contains(hexDigits, p.escape) }):
		// An escape sequence may contain the separator, so [template.rerender] could not find where a value ends.
		return glob.Match(strings.Join(t.literals, "*"), subject), ""
	}
	instead, ok = t.rerender(subject)
	return ok && instead == subject, instead
}

// admitsGlob reports whether a key may match a glob. It looks only at the text before the first star and after the
// last, and there only at the first value and the last, so it may say yes when no key matches. If a glob in lower case
// would do, instead is that.
func (t *template) admitsGlob(pattern string) (ok bool, instead string) {
	first, last := pattern[:strings.Index(pattern, "*")], pattern[strings.LastIndex(pattern, "*")+1:]
	n := len(t.parts)
	begin, inFirst := strings.CutPrefix(first, t.literals[0])
	end, inLast := strings.CutSuffix(last, t.literals[n])
	if !inFirst && !strings.HasPrefix(t.literals[0], first) || !inLast && !strings.HasSuffix(t.literals[n], last) {
		return false, ""
	}
	ok, instead = true, pattern
	lowerHelps := !t.needsHash() // else the rest may have in clear what is to be hashed
	look := func(p *part, from, to int) {
		if v := pattern[from:to]; !p.mayContain(v) {
			lower := strings.ToLower(v)
			ok, lowerHelps = false, lowerHelps && p.mayContain(lower)
			instead = instead[:from] + lower + instead[to:]
		}
	}
	if inLast { // before the first, because lower case may have another length
		to := len(pattern) - len(t.literals[n])
		look(&t.parts[n-1], to-t.endOfValue(end), to)
	}
	if inFirst {
		from := len(t.literals[0])
		look(&t.parts[0], from, from+t.beginOfValue(begin))
	}
	if ok || !lowerHelps {
		return ok, ""
	}
	return false, instead
}

// beginOfValue returns how much of a text, which is what follows the first literal, is surely of the first value.
func (t *template) beginOfValue(text string) int {
	switch p := &t.parts[0]; {
	case p.escape != "":
		value, _, _ := strings.Cut(text, p.escape)
		return len(value)
	case p.hash:
		return min(len(text), 2*hashBytes)
	}
	return max(0, len(text)-len(t.literals[1]))
}

// endOfValue returns how much of a text, which is what precedes the last literal, is surely of the last value: what
// follows the last place where the literal before the value may end.
func (t *template) endOfValue(text string) int {
	n := len(t.parts)
	before, at := t.literals[n-1], max(0, len(text)-1)
	if n == 1 { // nothing is before that literal
		at = min(at, len(before))
	}
	for at > 0 && !strings.HasSuffix(text[:at], before) && !strings.HasSuffix(before, text[:at]) {
		at--
	}
	return len(text) - at
}

// mayContain reports whether a value of the part, as it is in keys, may have a text in it. The text does not begin
// within an escape sequence.
func (p *part) mayContain(text string) bool {
	const hash, ip = "0123456789abcdef", "0123456789abcdef.:/"
	for text != "" {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case p.escape != "" && r == '%':
			size = min(3, len(text))
		case p.hash && !strings.ContainsRune(hash, r), !p.hash && p.ip && !strings.ContainsRune(ip, r), !p.hash && p.lower && unicode.ToLower(r) != r:
			return false
		}
		text = text[size:]
	}
	return true
}

// rerender takes the values out of a key and renders a key of them again, which is the same if it is a key of the template.
// A hash is kept as it is.
func (t *template) rerender(key string) (again string, ok bool) {
	rest, ok := strings.CutPrefix(key, t.literals[0])
	out := []byte(t.literals[0])
	for i := range t.parts {
		p, next := &t.parts[i], t.literals[i+1]
		end := len(rest) - len(next)
		if p.escape != "" {
			end = strings.Index(rest, p.escape)
		}
		if !ok || end < 1 || !strings.HasPrefix(rest[end:], next) {
			return "", false
		}
		value, err := p.filterAgain(rest[:end])
		if err != nil {
			return "", false
		}
		out = append(p.appendEscaped(out, value), next...)
		rest = rest[end+len(next):]
	}
	return string(out), ok
}

var errNoHash = errors.New("not a hash")

// filterAgain applies the filters to a value taken from a key.
func (p *part) filterAgain(inKey string) (string, error) {
	if p.hash {
		if len(inKey) != 2*hashBytes || !isHex(inKey) {
			return "", errNoHash
		}
		return inKey, nil
	}
	value := inKey
	if p.escape != "" {
		var err error
		if value, err = url.PathUnescape(inKey); err != nil {
			return "", err
		}
	}
	if p.ip {
		value = strings.TrimSuffix(value, "/64")
	}
	return p.filter(value, nil)
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }
