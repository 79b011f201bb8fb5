package policy

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/seed503877ad/limits/internal/engine"
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
	if changed.Validate() == nil {
		*l = changed
	}
	return l.Limit != 0
}

// Overrides is a table of overrides in memory. It is never changed.
type Overrides struct {
	exact map[overrideKey]Override
	// globs of each limit, the longest first.
	globs map[overrideKey][]Override
}

// overrideKey has no subject for globs.
type overrideKey struct{ policy, limit, subject string }

// NewOverrides makes a table. Of several with one policy, limit and subject the last counts.
func NewOverrides(list []Override) *Overrides {
	t := &Overrides{exact: map[overrideKey]Override{}, globs: map[overrideKey][]Override{}}
	for _, o := range list {
		if !strings.Contains(o.Subject, "*") {
			t.exact[overrideKey{o.Policy, o.Limit, o.Subject}] = o
			continue
		}
		k := overrideKey{o.Policy, o.Limit, ""}
		t.globs[k] = append(slices.DeleteFunc(t.globs[k], func(p Override) bool { return p.Subject == o.Subject }), o)
	}
	for _, list := range t.globs {
		slices.SortFunc(list, func(a, b Override) int {
			return cmp.Or(cmp.Compare(len(b.Subject), len(a.Subject)), strings.Compare(a.Subject, b.Subject))
		})
	}
	return t
}

// Find gives the most specific override in force: an exact subject before a pattern, a longer pattern before a shorter.
func (t *Overrides) Find(policy, limit, subject string, now time.Time) (Override, bool) {
	if o, ok := t.exact[overrideKey{policy, limit, subject}]; ok && o.inForce(now) {
		return o, true
	}
	for _, o := range t.globs[overrideKey{policy, limit, ""}] {
		if o.inForce(now) && glob(o.Subject, subject) {
			return o, true
		}
	}
	return Override{}, false
}

func (o *Override) inForce(now time.Time) bool {
	return o.ExpiresAt.IsZero() || now.Before(o.ExpiresAt)
}
