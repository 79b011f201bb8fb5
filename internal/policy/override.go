package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/glob"
)

// Override gives some subjects other limits than the file does.
type Override struct {
	// Policy and Limit name what it changes.
	Policy string `json:"policy"`
	Limit  string `json:"limit"`
	// Subject is the key of the limit, as it comes of the template, or a pattern with *.
	Subject string  `json:"subject"`
	Changes Changed `json:"changes"`
	// ExpiresAt is when it ends; zero for never.
	ExpiresAt time.Time `json:"expiresAt,omitzero"`
	Reason    string    `json:"reason,omitempty"`
}

// Changed is what an override sets; what is zero stays.
type Changed struct {
	Limit int64 `json:"limit,omitzero"`
	// Burst is nil to stay.
	Burst  *int64        `json:"burst,omitempty"`
	Window engine.Window `json:"-"`
	// Unlimited lifts the limit; nothing else is set then.
	Unlimited bool `json:"unlimited,omitzero"`
}

// Finder finds the override of a limit and key that is in force at now.
type Finder interface {
	Find(policy, limit, subject string, now time.Time) (Override, bool)
}

// apply changes a limit; false lifts it. A change that the limit cannot have, such as a burst after its algorithm was
// changed in the file, is left out: the file and the override are changed apart, and a request must have an answer.
func (o *Override) apply(l *engine.Limit) bool {
	if o.Changes.Unlimited {
		return false
	}
	if changed := o.changed(l); changed.Validate() == nil {
		*l = changed
	}
	return l.Limit != 0
}

func (o *Override) changed(l *engine.Limit) engine.Limit {
	changed := *l
	if o.Changes.Limit != 0 {
		changed.Limit = o.Changes.Limit
	}
	if o.Changes.Burst != nil {
		changed.Burst = *o.Changes.Burst
	}
	if !o.Changes.Window.IsZero() {
		changed.Window = o.Changes.Window
	}
	return changed
}

// ErrUnknownLimit says that the policy has no limit of that name.
var ErrUnknownLimit = errors.New("the policy has no limit of that name")

// CheckOverride tells whether an override could do what it says: whether there is such a limit, whose keys may be as its
// subject in some tier or at some time of day, and which can be changed so. The error is ErrUnknownPolicy or
// ErrUnknownLimit with the names there are, or an *[engine.FieldError].
func (s *Set) CheckOverride(o *Override) error {
	p := s.byName[o.Policy]
	if p == nil {
		return fmt.Errorf("%w: %q; there are %s", ErrUnknownPolicy, o.Policy, some(s.policies, func(p *policy) string { return p.name }))
	}
	err := fmt.Errorf("%w: %q; policy %s has %s", ErrUnknownLimit, o.Limit, p.name, some(p.base.usual, func(l limit) string { return l.name }))
	for limits := range p.variants {
		for i := range limits {
			if limits[i].name != o.Limit {
				continue
			}
			problem := o.fits(&limits[i])
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

// fits tells whether a limit may have a key as the subject and can be changed so.
func (o *Override) fits(l *limit) error {
	if l.key == nil || !l.key.mayBe(o.Subject) {
		keys := "none: it is unlimited"
		if l.key != nil {
			keys = l.key.text
		}
		return &engine.FieldError{Field: "subject", Message: fmt.Sprintf("no key is as %.80q; want a key as it comes of the "+
			"template, or a pattern of such keys with *; the template is %s", o.Subject, keys)}
	}
	if o.Changes.Unlimited {
		return nil
	}
	changed := o.changed(&l.Limit)
	return changed.Validate()
}

// mayBe tells whether the template may give a key that is as the subject, which may be a pattern. Of a pattern only both
// ends are looked at. A subject with an attribute in braces is the template, written again by mistake.
func (t *template) mayBe(subject string) bool {
	if slices.ContainsFunc(t.parts, func(p part) bool { return strings.Contains(subject, "{"+p.attribute) }) {
		return false
	}
	if !strings.Contains(subject, "*") {
		return glob.Match(strings.Join(t.literals, "*"), subject)
	}
	first, last := subject[:strings.Index(subject, "*")], subject[strings.LastIndex(subject, "*")+1:]
	if len(t.parts) == 0 {
		return glob.Match(subject, t.text)
	}
	before, behind := t.literals[0], t.literals[len(t.literals)-1]
	return (strings.HasPrefix(first, before) || strings.HasPrefix(before, first)) &&
		(strings.HasSuffix(last, behind) || strings.HasSuffix(behind, last))
}

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
