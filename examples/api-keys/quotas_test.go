package main

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/examples/internal/exampletest"
)

// row gives a user the usual quotas.
func (s *site) row(t *testing.T, user string) {
	t.Helper()
	for category, limit := range map[string]int64{"enrichment": 50, "discovery": 25, "api": 1000} {
		s.quota(t, category, user, limit)
	}
}

func (s *site) quota(t *testing.T, category, user string, limit int64) {
	t.Helper()
	if _, err := s.limiter.SetOverride(t.Context(), limits.SetOverrideRequest{
		OverrideID: limits.OverrideID{Policy: "quota-" + category, Name: "month", Subject: "quota:" + category + ":" + user},
		Limit:      limit, Reason: "his contract",
	}); err != nil {
		t.Fatal(err)
	}
}

// TestQuotas checks that each category has its own quota, charged after the handler and only for work that was done.
func TestQuotas(t *testing.T) {
	t.Parallel()
	exampletest.OnEachStore(t, func(t *testing.T, store string) {
		s := serve(t, store, "policies.yaml")
		s.row(t, "7")
		key, _ := s.key(t, "7")
		before := time.Now()
		for _, c := range []struct {
			endpoint, category string
			limit              int64
		}{
			{"POST /v1/discovery/enrich", "enrichment", 50}, {"GET /v1/discovery/prospects", "discovery", 25},
			{"GET /v1/contacts/{id}", "api", 1000},
		} {
			s.charge(t, c.endpoint, c.limit-1)
			s.want(t, 200, "", c.endpoint, "X-API-Key", key)
			s.wantUsed(t, "quota:"+c.category+":7", c.limit)
			s.want(t, 429, "You've used", c.endpoint, "X-API-Key", key)
		}
		s.wantAMonthFromTheFirstUse(t, before, key)
		// The endpoints of a category share its quota, and no other category has such a small one.
		for endpoint, limit := range map[string]string{
			"POST /v1/bulk-enrich": "50", "POST /v1/discovery/enrich": "50",
			"GET /v1/goldilocks": "25", "GET /v1/discovery/prospects": "25", "GET /v1/recommendations": "25", "POST /v1/ranking/calculate": "25",
			"GET /v1/contacts/{id}": "1000", "GET /v1/broken": "1000",
		} {
			a := s.want(t, 429, "You've used "+limit+" of "+limit+" ", endpoint, "X-API-Key", key)
			if a.Header.Get("X-RateLimit-Limit") != limit {
				t.Errorf("%s: denial by the quota: %+v; want its limit of %s in the headers", endpoint, a, limit)
			}
		}
		// The quota is that of the user, whichever key is used.
		second, err := s.limiter.CreateKey(t.Context(), limits.CreateKeyRequest{User: "7", Tier: "enterprise"})
		if err != nil {
			t.Fatal(err)
		}
		s.want(t, 429, "You've used", "GET /v1/goldilocks", "X-API-Key", second.APIKey)
	})
}

// TestUserWithoutOverrideHasNoQuota, whatever others have.
func TestUserWithoutOverrideHasNoQuota(t *testing.T) {
	t.Parallel()
	exampletest.OnEachStore(t, func(t *testing.T, store string) {
		s := serve(t, store, "policies.yaml")
		s.row(t, "7")
		key, _ := s.key(t, "8")
		for range 30 {
			s.want(t, 200, "", "GET /v1/goldilocks", "X-API-Key", key)
		}
	})
}

// wantAMonthFromTheFirstUse checks that a quota that was first used after before resets a month later, at the same time of day.
func (s *site) wantAMonthFromTheFirstUse(t *testing.T, before time.Time, key string) {
	t.Helper()
	const day = 24 * time.Hour
	a := s.want(t, 429, "", "GET /v1/goldilocks", "X-API-Key", key)
	seconds, err := strconv.ParseInt(a.Header.Get("X-RateLimit-Reset"), 10, 64)
	ahead := time.Unix(seconds, 0).Sub(before)
	if late := ahead % day; err != nil || ahead < 28*day || ahead >= 32*day || late > time.Since(before)+time.Second { // rounded up
		t.Errorf("the quota resets %s after its first use (%v); want a month", ahead, err)
	}
}

// charge charges the quota of user 7, like so many requests.
func (s *site) charge(t *testing.T, endpoint string, cost int64) {
	t.Helper()
	if _, err := s.limiter.Record(t.Context(), limits.Request{
		Attributes: map[string]string{"user": "7", "endpoint": endpoint}, Cost: cost,
	}); err != nil {
		t.Fatal(err)
	}
}

// wantUsed waits for a charge that is made after the response.
func (s *site) wantUsed(t *testing.T, key string, want int64) {
	t.Helper()
	exampletest.Until(t, fmt.Sprintf("%s: %d used", key, want), func() bool {
		status, err := s.limiter.Status(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		return len(status.Counters) == 1 && status.Counters[0].Used == want
	})
}

// TestAFailureIsNotCharged: only the successful request after the failure is charged.
func TestAFailureIsNotCharged(t *testing.T) {
	t.Parallel()
	s := serve(t, exampletest.SQLite, "policies.yaml")
	s.row(t, "7")
	key, _ := s.key(t, "7")
	s.want(t, 500, "broken", "GET /v1/broken", "X-API-Key", key)
	s.want(t, 200, "", "GET /v1/contacts/7", "X-API-Key", key)
	s.wantUsed(t, "quota:api:7", 1)
}

// TestConcurrentChargesKeepTheQuota: a quota that is charged before the work is never exceeded.
func TestConcurrentChargesKeepTheQuota(t *testing.T) {
	t.Parallel()
	exampletest.OnEachStore(t, func(t *testing.T, store string) {
		s := serve(t, store, "policies.yaml")
		s.row(t, "7")
		request := limits.Request{Attributes: map[string]string{"user": "7", "endpoint": "POST /v1/bulk-enrich"}}
		if allowed := exampletest.AllowedAtOnce(t, 100, s.limiter, request); allowed != 50 {
			t.Errorf("%d of 100 simultaneous charges were allowed; want 50", allowed)
		}
	})
}

// TestUserWithOwnLimit: a user may have a limit of their own, and a quota resets by itself after a month.
func TestUserWithOwnLimit(t *testing.T) {
	t.Parallel()
	exampletest.OnEachStore(t, func(t *testing.T, store string) {
		s := serve(t, store, exampletest.Rewrite(t, "policies.yaml", "window: month", "window: 1s, algorithm: fixed_window"))
		s.quota(t, "discovery", "7", 3)
		request := limits.Request{Attributes: map[string]string{"user": "7", "endpoint": "GET /v1/goldilocks"}}
		request.Cost = 3
		reply, err := s.limiter.Wait(t.Context(), request)
		if err != nil || reply.Limit != 3 || reply.Remaining != 0 {
			t.Fatalf("%+v, %v; want the limit 3, all used", reply, err)
		}
		// The next one fits only after the window has ended, without any reset.
		again, err := s.limiter.Wait(t.Context(), request)
		if err != nil || again.Remaining != 0 || again.Reset < reply.Reset+1000 {
			t.Errorf("%+v, %v; want a window behind %d", again, err, reply.Reset)
		}
	})
}
