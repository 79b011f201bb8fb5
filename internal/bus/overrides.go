package bus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/internal/engine"
	"github.com/seed503877ad/limits/internal/overrides"
	"github.com/seed503877ad/limits/internal/policy"
)

func (s *Service) setOverride(ctx context.Context, data []byte) (any, error) {
	o, err := s.decodeOverride(data)
	if err == nil {
		err = s.knownOverride(&o)
	}
	if err != nil {
		return nil, err
	}
	err = s.cfg.Overrides.Put(ctx, o)
	if errors.Is(err, overrides.ErrFull) {
		return nil, &limits.Error{Status: 409, Code: limits.CodeTooManyOverrides, Field: "subject", Message: "too many " +
			"overrides, or too many globs for this limit; delete expired ones, or give those subjects a tier instead"}
	}
	if err != nil {
		return nil, s.mayHold(err)
	}
	s.cfg.Logger.Info("override set", overrideAttrs(&o)...)
	return limits.OverrideReply{Override: wireOverride(&o)}, nil
}

// mayHold adds the answer to the error of a change that the store did not confirm.
func (s *Service) mayHold(err error) error {
	we := *wireError(err, s.cfg.Advice)
	we.Message += "; the change may hold all the same, which " + limits.SubjectOverridesList + " (limiter overrides list) shows, and may be made again"
	return fmt.Errorf("%w: %w", err, &we)
}

// knownOverride refuses an override that the policies of this worker would never look up. Without
// policies there is nothing to compare with.
func (s *Service) knownOverride(o *overrides.Override) error {
	if s.cfg.Policies == nil {
		return nil
	}
	err := s.cfg.Policies.Report().Current.CheckOverride(o)
	var field *engine.FieldError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, policy.ErrUnknownPolicy):
		return &limits.Error{Status: 404, Code: limits.CodeUnknownPolicy, Field: "policy", Message: err.Error()}
	case errors.Is(err, policy.ErrUnknownLimit):
		return &limits.Error{Status: 404, Code: limits.CodeUnknownLimit, Field: "name", Message: err.Error()}
	case errors.As(err, &field):
		return invalid(field.Field, "limit %s of policy %s cannot be changed this way: %s", o.Name, o.Policy, field.Message)
	}
	return err
}

// overrideAttrs are the attributes with which an override is logged. The log is all that is left of
// one that was replaced or deleted.
func overrideAttrs(o *overrides.Override) []any {
	attrs := []any{"policy", o.Policy, "name", o.Name, "subject", o.Subject}
	if o.Limit != 0 {
		attrs = append(attrs, "limit", o.Limit)
	}
	if o.Window != "" {
		attrs = append(attrs, "window", o.Window)
	}
	if o.Burst != nil {
		attrs = append(attrs, "burst", *o.Burst)
	}
	if o.Unlimited {
		attrs = append(attrs, "unlimited", true)
	}
	until := "deleted"
	if o.ExpiresAt != 0 {
		until = time.UnixMilli(o.ExpiresAt).UTC().Format(time.RFC3339)
	}
	return append(attrs, "until", until, "by", o.By, "reason", o.Reason)
}

func (s *Service) decodeOverride(data []byte) (o overrides.Override, err error) {
	p := s.decoder.acquireParser()
	defer s.decoder.parsers.Put(p)
	err = p.fields(data, append(overrideIDFields(&o.ID),
		number("limit", &o.Limit, 1, limits.MaxAmount),
		field{"window", func(*reader) error {
			var sp spec
			err := p.specWord(&sp, specWindow)
			o.Window = sp.window.String()
			return err
		}},
		field{"burst", func(*reader) error {
			n, err := p.number("burst", 0, limits.MaxAmount)
			o.Burst = &n
			return err
		}},
		boolean("unlimited", &o.Unlimited),
		number("expiresAt", &o.ExpiresAt, 1, maxTime),
		text("reason", &o.Reason, 1, limits.MaxReasonBytes),
		text("by", &o.By, 1, limits.MaxNameBytes))...)
	if err != nil {
		return o, err
	}
	o.SetAt = s.now().UnixMilli()
	return o, checkOverride(&o)
}

func overrideIDFields(id *overrides.ID) []field {
	return []field{
		text("policy", &id.Policy, 1, limits.MaxNameBytes),
		text("name", &id.Name, 1, limits.MaxNameBytes),
		text("subject", &id.Subject, 1, limits.MaxKeyBytes),
	}
}

func checkOverrideID(id *overrides.ID) error {
	for _, f := range []struct{ name, value string }{{"policy", id.Policy}, {"name", id.Name}, {"subject", id.Subject}} {
		if f.value == "" {
			return invalid(f.name, "%s is missing; an override needs policy, name (of the limit) and subject", f.name)
		}
	}
	return nil
}

func checkOverride(o *overrides.Override) error {
	if err := checkOverrideID(&o.ID); err != nil {
		return err
	}
	changes := o.Limit != 0 || o.Window != "" || o.Burst != nil
	switch {
	case o.Unlimited && changes:
		return mixedForms("unlimited", "unlimited lifts the limit; leave out limit, window and burst")
	case !o.Unlimited && !changes:
		return invalid("limit", "the override changes nothing; give limit, window, burst, or unlimited")
	case o.Reason == "":
		return invalid("reason", "reason is missing; say why, for whoever finds the override later")
	case !o.Live(o.SetAt):
		return invalid("expiresAt", "expiresAt %d is not in the future (now is %d); want Unix milliseconds",
			o.ExpiresAt, o.SetAt)
	}
	return nil
}

func (s *Service) deleteOverride(ctx context.Context, data []byte) (any, error) {
	var id overrides.ID
	err := readFields(data, overrideIDFields(&id)...)
	if err == nil {
		err = checkOverrideID(&id)
	}
	if err != nil {
		return nil, err
	}
	found, err := s.cfg.Overrides.Delete(ctx, id)
	if err != nil {
		return nil, s.mayHold(err)
	}
	s.cfg.Logger.Info("override deleted", "policy", id.Policy, "name", id.Name, "subject", id.Subject, "found", found)
	return limits.DeleteOverrideReply{Deleted: found}, nil
}

func (s *Service) listOverrides(ctx context.Context, data []byte) (any, error) {
	f, err := decodeListOverrides(data)
	if err != nil {
		return nil, err
	}
	page, more, err := s.cfg.Overrides.List(ctx, f)
	if err != nil {
		return nil, err
	}
	now := time.Now().UnixMilli()
	reply := limits.OverrideList{Overrides: wireAll(page, wireOverride)}
	for i := range page {
		reply.Overrides[i].Unused = page[i].Live(now) && s.knownOverride(&page[i]) != nil
	}
	if more {
		last := page[len(page)-1].ID
		reply.Next = strings.Join([]string{last.Policy, last.Name, last.Subject}, cursorCut)
	}
	return reply, nil
}

func decodeListOverrides(data []byte) (overrides.Filter, error) {
	f := overrides.Filter{Max: defaultListPage}
	err := readFields(data,
		text("policy", &f.Policy, 0, limits.MaxNameBytes),
		parsed("after", func(after string) (err error) {
			f.After, err = parseOverrideCursor(after)
			return err
		}),
		number("max", &f.Max, 1, limits.MaxListPage))
	return f, err
}

func parseOverrideCursor(after string) (id overrides.ID, err error) {
	if after == "" {
		return id, nil
	}
	parts := strings.Split(after, cursorCut)
	if _, bad := policy.Unprintable(strings.Join(parts, "")); bad || len(parts) != 3 || len(after) > 2*limits.MaxKeyBytes {
		return id, invalid("after", "after %s is not a valid cursor; want next from the previous page", fmt.Sprintf("%.64q", after))
	}
	return overrides.ID{Policy: parts[0], Name: parts[1], Subject: parts[2]}, nil
}

func wireOverride(o *overrides.Override) limits.Override {
	return limits.Override{SetAt: o.SetAt, SetOverrideRequest: limits.SetOverrideRequest{
		OverrideID: limits.OverrideID{Policy: o.Policy, Name: o.Name, Subject: o.Subject},
		Limit:      o.Limit, Window: o.Window, Burst: o.Burst, Unlimited: o.Unlimited,
		ExpiresAt: o.ExpiresAt, Reason: o.Reason, By: o.By,
	}}
}
