package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"html/template"
	"log"
	"net/http"
	"time"

	"github.com/seed503877ad/limits"
)

//go:embed page.html
var pageHTML string

var pageTemplate = template.Must(template.New("page").Parse(pageHTML))

// page writes the status page. Its content security policy allows only its own script and style, and nothing from elsewhere.
func page(w http.ResponseWriter, _ *http.Request) {
	nonce := rand.Text()
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'nonce-"+nonce+"'; style-src 'nonce-"+nonce+
		"'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	_ = pageTemplate.Execute(w, nonce) // the client may be gone
}

// gauge is the state of a limit for the page.
type gauge struct {
	Type      string `json:"type"`
	Current   int64  `json:"current"`
	Limit     int64  `json:"limit"`
	Remaining int64  `json:"remaining"`
	// ResetAt is left out if nothing of the limit is used, since its window has not begun.
	ResetAt time.Time `json:"resetAt,omitzero"`
}

func gaugeOf(name string, limit, remaining, reset int64) gauge {
	remaining = max(remaining, 0)
	g := gauge{Type: name, Current: limit - remaining, Limit: limit, Remaining: remaining}
	if g.Current > 0 {
		g.ResetAt = time.UnixMilli(reset).UTC()
	}
	return g
}

// gaugeWithJob adds the job that the handler has just created, which will be charged after the answer. The reset is left out if the
// job changes it: it begins the window, or takes a token of a bucket, which is then whole later.
func gaugeWithJob(l limits.LimitReply) gauge {
	g := gaugeOf(l.Name, l.Limit, l.Remaining, l.Reset)
	g.Current, g.Remaining = g.Current+1, max(g.Remaining-1, 0)
	if l.Algorithm == limits.TokenBucket {
		g.ResetAt = time.Time{}
	}
	return g
}

// status answers how much of each limit the user has used, and charges nothing. It includes the server's time, for clients whose
// clock is wrong.
func (s *server) status(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), limits.DefaultTimeout)
	defer cancel()
	generations, err := s.gauges(ctx, r, s.policy)
	var cents []gauge
	if err == nil {
		cents, err = s.gauges(ctx, r, "money")
	}
	if err != nil {
		refuse(w, err)
		return
	}
	answer(w, http.StatusOK, map[string]any{"user": user(r), "tier": tier(r), "now": time.Now().UTC(), "limits": append(generations, cents...)})
}

// refuse tells the client only whether the request is at fault, for example because of a name that is too long.
func refuse(w http.ResponseWriter, err error) {
	if e, ok := errors.AsType[*limits.Error](err); ok && e.Status == http.StatusBadRequest {
		answer(w, http.StatusBadRequest, map[string]string{"error": "user or tier cannot be read"})
		return
	}
	log.Println("status:", err)
	answer(w, http.StatusServiceUnavailable, map[string]string{"error": "the limits cannot be told for now"})
}

// gauges returns the limits of a policy for the user, in the current tier and with overrides, with what is used of them. It counts
// no denial when nothing remains, as a check would, so that a page that refreshes raises no alerts.
func (s *server) gauges(ctx context.Context, r *http.Request, policy string) (all []gauge, err error) {
	status, err := s.client.StatusOf(ctx, limits.StatusRequest{Policy: policy, Attributes: map[string]string{"user": user(r)}, Tier: tier(r)})
	if err != nil {
		return nil, err
	}
	for _, c := range status.Counters {
		all = append(all, gaugeOf(c.Name, c.Limit, c.Limit-c.Used, c.Reset))
	}
	return all, nil
}
