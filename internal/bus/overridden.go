package bus

import (
	"errors"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/overrides"
	"github.com/seed503877ad/limits/internal/policy"
)

// overridden finds for the policies what the table of overrides holds.
type overridden struct{ table *overrides.Table }

// Find implements [policy.Finder].
func (t overridden) Find(name, limit, subject string, now time.Time) (policy.Override, bool) {
	o, ok := t.table.Find(name, limit, subject, now.UnixMilli())
	if !ok {
		return policy.Override{}, false
	}
	return policyOverride(&o), true
}

// OverridesOf finds among overrides, as they were listed, what a worker would.
func OverridesOf(list []limits.Override) policy.Finder {
	all := make([]overrides.Override, len(list))
	for i := range list {
		l := &list[i]
		all[i] = overrides.Override{
			ID:    overrides.ID{Policy: l.Policy, Name: l.Name, Subject: l.Subject},
			Limit: l.Limit, Window: l.Window, Burst: l.Burst, Unlimited: l.Unlimited,
			ExpiresAt: l.ExpiresAt, Reason: l.Reason, By: l.By, SetAt: l.SetAt,
		}
	}
	return overridden{overrides.Fixed(all)}
}

func policyOverride(o *overrides.Override) policy.Override {
	found := policy.Override{
		Policy: o.Policy, Limit: o.Name, Subject: o.Subject, Reason: o.Reason,
		Changes: policy.Changed{Limit: o.Limit, Burst: o.Burst, Unlimited: o.Unlimited},
	}
	if o.Window != "" {
		// It was checked when it was set; one that cannot be read stays as it is in the file.
		found.Changes.Window, _ = engine.ParseWindow(o.Window)
	}
	return found
}

// knownOverride refuses an override that the policies of this worker would never ask for. Without policies there is
// nothing to compare it with.
func (s *Service) knownOverride(o *overrides.Override) error {
	if s.cfg.Policies == nil {
		return nil
	}
	asked := policyOverride(o)
	err := s.cfg.Policies.Report().Current.CheckOverride(&asked)
	var field *engine.FieldError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, policy.ErrUnknownPolicy):
		return &limits.Error{Status: 404, Code: limits.CodeUnknownPolicy, Field: "policy", Message: err.Error()}
	case errors.Is(err, policy.ErrUnknownLimit):
		return &limits.Error{Status: 404, Code: limits.CodeUnknownLimit, Field: "name", Message: err.Error()}
	case errors.As(err, &field):
		return badInput(field.Field, field.Field, "limit %s of policy %s cannot be changed so: %s", o.Name, o.Policy, field.Message)
	}
	return err
}
