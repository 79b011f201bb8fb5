package policy

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/glob"
	"github.com/seed503877ad/limits/internal/overrides"
)

// Finder finds the override of a limit and key that is in force at now, in Unix milliseconds.
type Finder interface {
	Find(policy, name, subject string, now int64) (overrides.Override, bool)
}

// apply changes a limit; not limited is one that is lifted. A change that the limit cannot have, such as a burst after its
// algorithm was changed in the file, is left out and not used: the file and the override are changed apart, and a request must
// have an answer.
func apply(o *overrides.Override, l *engine.Limit) (limited, used bool) {
	if o.Unlimited {
		return false, true
	}
	other := changed(o, l)
	if used = other.Validate() == nil; used {
		*l = other
	}
	return l.Limit != 0, used
}

func changed(o *overrides.Override, l *engine.Limit) engine.Limit {
	changed := *l
	if o.Limit != 0 {
		changed.Limit = o.Limit
	}
	if o.Burst != nil {
		changed.Burst = *o.Burst
	}
	if o.Window != "" {
		// It was checked when it was set; one that cannot be read stays as it is in the file.
		if w, err := engine.ParseWindow(o.Window); err == nil {
			changed.Window = w
		}
	}
	return changed
}

// ErrUnknownLimit says that the policy has no limit of that name.
var ErrUnknownLimit = errors.New("the policy has no limit of that name")

// CheckOverride tells whether an override could do what it says: whether there is such a limit, whose keys may be as its
// subject in some tier or at some time of day, and which can be changed so. The error is ErrUnknownPolicy or
// ErrUnknownLimit with the names there are, or an *[engine.FieldError].
func (s *Set) CheckOverride(o *overrides.Override) error {
	p := s.byName[o.Policy]
	if p == nil {
		return s.unknown(o.Policy)
	}
	err := fmt.Errorf("%w: %q; policy %s has %s", ErrUnknownLimit, o.Name, p.name, some(p.base.usual, func(l limit) string { return l.name }))
	for limits := range p.variants {
		for i := range limits {
			if limits[i].name != o.Name {
				continue
			}
			problem := fits(o, &limits[i])
			if problem == nil {
				return nil
			}
			if errors.Is(err, ErrUnknownLimit) {
				err = problem // of the limit as it is without a tier
			}
		}
	}
	return err
}

// unknown is the ErrUnknownPolicy of a name, with the names there are.
func (s *Set) unknown(name string) error {
	return fmt.Errorf("%w: %q; there are %s", ErrUnknownPolicy, name, some(s.policies, func(p *policy) string { return p.name }))
}

// fits tells whether a limit may have a key as the subject and can be changed so.
func fits(o *overrides.Override, l *limit) error {
	if l.key == nil {
		return noKey(o.Subject, "", "none: it is unlimited")
	}
	if ok, instead := l.key.mayBe(o.Subject); !ok {
		text := l.key.text
		if l.key.needsHash() {
			text += fmt.Sprintf(", and what is hashed stands in the key as %d hex digits", 2*hashBytes)
		}
		return noKey(o.Subject, instead, text)
	}
	if o.Unlimited {
		return nil
	}
	other := changed(o, &l.Limit)
	return other.Validate()
}

// noKey says that a limit has no key as the subject, and which one it has instead, if that is known.
func noKey(subject, instead, template string) error {
	want := "want a key as it comes of the template, or a pattern of such keys with *"
	if instead != "" {
		want = fmt.Sprintf("the filters of the template make it %q", instead)
	}
	return &engine.FieldError{Field: "subject", Message: fmt.Sprintf("no key is as %.80q; %s; the template is %s", subject, want, template)}
}

// mayBe tells whether the template may give a key that is as the subject, which may be a pattern; and if it is none because of
// the filters, what they make of it. A subject with an attribute in braces is the template, written again by mistake.
func (t *template) mayBe(subject string) (ok bool, instead string) {
	switch {
	case slices.ContainsFunc(t.parts, func(p part) bool { return strings.Contains(subject, "{"+p.attribute) }):
		return false, ""
	case len(t.parts) == 0:
		return glob.Match(subject, t.text), ""
	case glob.Is(subject):
		return t.mayFit(subject), ""
	case slices.ContainsFunc(t.parts, func(p part) bool { return p.escape != "" && strings.Contains(hexits, p.escape) }):
		// What is escaped may have that character in it, so [template.filtered] would not find where a value ends.
		return glob.Match(strings.Join(t.literals, "*"), subject), ""
	}
	instead, ok = t.filtered(subject)
	return ok && instead == subject, instead
}

// mayFit tells whether a key may fit a pattern. Only the ends of the pattern are looked at.
func (t *template) mayFit(pattern string) bool {
	first, last := pattern[:strings.Index(pattern, "*")], pattern[strings.LastIndex(pattern, "*")+1:]
	n := len(t.parts)
	begin, inFirst := strings.CutPrefix(first, t.literals[0])
	end, inLast := strings.CutSuffix(last, t.literals[n])
	switch {
	case inFirst && t.parts[0].hash && !isHex(begin[:min(len(begin), 2*hashBytes)]),
		inLast && t.parts[n-1].hash && !isHex(end[max(0, len(end)-2*hashBytes):]):
		return false
	}
	return (inFirst || strings.HasPrefix(t.literals[0], first)) && (inLast || strings.HasSuffix(t.literals[n], last))
}

// filtered takes the values out of a key, as [template.render] put them in, and makes a key of them again: the same, if it is
// one. A hash can be no other.
func (t *template) filtered(key string) (again string, ok bool) {
	rest, ok := strings.CutPrefix(key, t.literals[0])
	room := []byte(t.literals[0])
	for i := range t.parts {
		p, next := &t.parts[i], t.literals[i+1]
		end := len(rest) - len(next)
		if p.escape != "" {
			end = strings.Index(rest, p.escape)
		}
		if !ok || end < 1 || !strings.HasPrefix(rest[end:], next) {
			return "", false
		}
		value, err := p.refilter(rest[:end])
		if err != nil {
			return "", false
		}
		room = append(p.appendEscaped(room, value), next...)
		rest = rest[end+len(next):]
	}
	return string(room), ok
}

var errNoHash = errors.New("this is no hash")

// refilter filters a value that stands in a key.
func (p *part) refilter(inKey string) (string, error) {
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
	return p.value(value, nil)
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

// some lists the first of some names.
func some[T any](all []T, name func(T) string) string {
	const most = 20
	var names []string
	for i := range min(len(all), most) {
		names = append(names, name(all[i]))
	}
	text := strings.Join(names, ", ")
	if more := len(all) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
