package httplimit_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/seed503877ad/limits"
	"github.com/seed503877ad/limits/httplimit"
)

func TestInvalidConfigPanics(t *testing.T) {
	t.Parallel()
	c, ok := dial(t, natsURL), inline(t, 1, "1h")
	attributes := func(all map[string]httplimit.Attribute) func() {
		return func() { httplimit.Middleware(c, httplimit.Config{Attributes: all}) }
	}
	many := map[string]httplimit.Attribute{}
	for i := range limits.MaxAttributes {
		many[fmt.Sprint(i)] = httplimit.Path()
	}
	attributes(maps.Clone(many))() // does not panic
	many["one more"] = httplimit.Path()
	for field, make := range map[string]func(){
		"Middleware: client":             func() { httplimit.Middleware(nil, httplimit.Config{Limits: ok}) },
		"Outbound: client":               func() { httplimit.Outbound(nil, limits.Request{}, nil) },
		"set Limits, Policy":             func() { httplimit.Middleware(c, httplimit.Config{Tier: httplimit.Text("pro")}) },
		"Limits cannot be combined":      func() { httplimit.Middleware(c, httplimit.Config{Limits: ok, Policy: httplimit.Text("api")}) },
		"Limits cannot be combined with": func() { httplimit.Middleware(c, httplimit.Config{Limits: ok, APIKey: httplimit.Bearer()}) },
		"APIKey cannot be combined": func() {
			httplimit.Middleware(c, httplimit.Config{APIKey: httplimit.Bearer(), Mode: httplimit.CheckThenRecord})
		},
		"invalid Mode 7":         func() { httplimit.Middleware(c, httplimit.Config{Limits: ok, Mode: 7}) },
		"invalid Deadline -1s":   func() { httplimit.Middleware(c, httplimit.Config{Limits: ok, Deadline: -time.Second}) },
		"invalid FailStatus 200": func() { httplimit.Middleware(c, httplimit.Config{Limits: ok, FailStatus: 200}) },
		"unknown placeholder ":   func() { httplimit.Must(httplimit.TextTemplate("{no}")) },
		// Mistakes that would show only at the first request, or not at all.
		"33 of them; want at most 32":             attributes(many),
		`invalid Attributes["user"]: nil`:         attributes(map[string]httplimit.Attribute{"user": nil, "path": httplimit.Path()}),
		`invalid Attributes[""]; want a name`:     attributes(map[string]httplimit.Attribute{"": httplimit.Path()}),
		`invalid Attributes["a\nb"]; want a name`: attributes(map[string]httplimit.Attribute{"a\nb": httplimit.Path()}),
		`xxx"]; want a name of 1 to 64 bytes`:     attributes(map[string]httplimit.Attribute{strings.Repeat("x", 65): httplimit.Path()}),
		"invalid Headers[1]: nil": func() {
			httplimit.Middleware(c, httplimit.Config{Limits: ok, Headers: []httplimit.Headers{httplimit.RateLimitFields, nil}})
		},
		"httplimit: JSON: value is nil":       func() { httplimit.JSON(nil) },
		"httplimit: Or: attribute 2 is nil":   func() { httplimit.Or(httplimit.Path(), nil) },
		"httplimit: Subnet64: address is nil": func() { httplimit.Subnet64(nil) },
		"httplimit: RouteIn: mux is nil":      func() { httplimit.RouteIn(nil) },
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, field) {
					t.Errorf("panic %q does not name %q", got, field)
				}
			}()
			make()
		}()
	}
}
