package httplimit_test

import (
	"fmt"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/seed503877ad/limits/httplimit"
)

var proxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:ffff::/48")}

func TestClientIP(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, remote string
		header       []string
		want         string
	}{
		{"no proxy", "203.0.113.9:4711", nil, "203.0.113.9"},
		{"forged without a proxy", "203.0.113.9:4711", []string{"198.51.100.1"}, "203.0.113.9"},
		{"one proxy", "10.0.0.1:1", []string{"203.0.113.9"}, "203.0.113.9"},
		{"forged through a proxy", "10.0.0.1:1", []string{"198.51.100.1, 203.0.113.9"}, "203.0.113.9"},
		{"forged as a proxy", "10.0.0.1:1", []string{"198.51.100.1, 203.0.113.9, 10.0.0.2"}, "203.0.113.9"},
		{"two lines", "10.0.0.1:1", []string{"198.51.100.1", "203.0.113.9,10.0.0.2"}, "203.0.113.9"},
		{"proxies alone", "10.0.0.1:1", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"no header", "10.0.0.1:1", nil, "10.0.0.1"},
		{"no address", "10.0.0.1:1", []string{"203.0.113.9, unknown, 10.0.0.2"}, "10.0.0.2"},
		{"empty", "10.0.0.1:1", []string{""}, "10.0.0.1"},
		{"IPv6", "[2001:db8::7]:4711", nil, "2001:db8::7"},
		{"IPv6 proxy", "[2001:db8:ffff::1]:1", []string{"2001:DB8:0:0::7"}, "2001:db8::7"},
		{"IPv6 with port", "[2001:db8:ffff::1]:1", []string{"[2001:db8::7]:4711"}, "2001:db8::7"},
		{"IPv6 zone", "[fe80::1%eth0]:4711", nil, "fe80::1"},
		{"IPv6 zone behind a proxy", "10.0.0.1:1", []string{"fe80::1%eth0"}, "fe80::1"},
		{"IPv4 in IPv6", "[::ffff:10.0.0.1]:1", []string{"::ffff:203.0.113.9"}, "203.0.113.9"},
		{"IPv4 with port", "10.0.0.1:1", []string{"203.0.113.9:80"}, "203.0.113.9"},
		{"Unix socket", "@", []string{"203.0.113.9"}, "203.0.113.9"},
		{"not an address", "somewhere", []string{"203.0.113.9"}, ""},
		{"commas alone", "10.0.0.1:1", []string{strings.Repeat(",", 1<<20)}, "10.0.0.1"},
		{"more hops than are followed", "10.0.0.1:1", []string{strings.Repeat("198.51.100.1,", 9) + strings.Repeat("10.0.0.2,", 99) + "10.0.0.3"}, "10.0.0.2"},
	}
	for _, tt := range tests {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr, r.Header["X-Forwarded-For"] = tt.remote, tt.header
		r.Header.Set("Forwarded", "for=192.0.2.66") // not the header that is trusted
		if got := httplimit.ClientIP(proxies...)(r); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// A network may be written in the form of IPv4-mapped addresses.
func TestATrustedNetworkInIPv6Form(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ network, remote, want string }{
		{"::ffff:10.0.0.0/104", "10.0.0.1:1", "203.0.113.9"},
		{"::ffff:10.0.0.0/104", "[::ffff:10.0.0.1]:1", "203.0.113.9"},
		{"::ffff:a00:0/104", "10.0.0.1:1", "203.0.113.9"},
		{"::ffff:10.0.0.0/104", "11.0.0.1:1", "11.0.0.1"},
		{"::ffff:10.0.0.1/128", "10.0.0.1:1", "203.0.113.9"},
		{"::ffff:10.0.0.1/128", "10.0.0.2:1", "10.0.0.2"},
		{"::ffff:0:0/96", "192.0.2.1:1", "203.0.113.9"},
		{"::ffff:0:0/96", "[2001:db8::1]:1", "2001:db8::1"},
		{"::/0", "[2001:db8::1]:1", "203.0.113.9"},
		{"::ffff:0:0/64", "[::1]:1", "203.0.113.9"},
		{"::ffff:0:0/64", "10.0.0.1:1", "10.0.0.1"},
		{"::/0", "10.0.0.1:1", "10.0.0.1"}, // all IPv6 addresses, and no IPv4 address
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = tt.remote
		r.Header.Set("X-Forwarded-For", "203.0.113.9")
		r.Header.Set("Forwarded", "for=203.0.113.9")
		trusted := []netip.Prefix{netip.MustParsePrefix(tt.network)}
		if got := httplimit.ClientIP(trusted...)(r); got != tt.want {
			t.Errorf("%s, from %s: %q, want %q", tt.network, tt.remote, got, tt.want)
		}
		if got := httplimit.ForwardedIP(trusted...)(r); got != tt.want {
			t.Errorf("Forwarded, %s, from %s: %q, want %q", tt.network, tt.remote, got, tt.want)
		}
		if trusted[0] != netip.MustParsePrefix(tt.network) {
			t.Errorf("%s: the caller's slice was changed to %v", tt.network, trusted)
		}
	}
}

func TestForwardedIP(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		`for=203.0.113.9`: "203.0.113.9",
		`for=198.51.100.1, FOR="203.0.113.9:80";proto=https`:  "203.0.113.9",
		`proto=https ; by=10.0.0.1; for="[2001:db8::7]:4711"`: "2001:db8::7",
		`for="203.0.113.9:_p1"`:                               "203.0.113.9",
		`for="[2001:db8::7]:_a.b-c"`:                          "2001:db8::7",
		`for="_hidden"`:                                       "10.0.0.1",
		`for=203.0.113.9, for=10.0.0.2`:                       "203.0.113.9",
		`for=203.0.113.9, for=_hidden`:                        "10.0.0.1",
		`for=203.0.113.9, proto=https`:                        "10.0.0.1",
		`for="198.51.100.1, for=10.0.0.2", for="203.0.113.9"`: "203.0.113.9",
		`for="203.0.113.9`:                                    "10.0.0.1",
		`host="a;for=9.9.9.1";for=203.0.113.7`:                "203.0.113.7",
		`for=203.0.113.7;host="a;for=9.9.9.1"`:                "203.0.113.7",
		`host="a\"\\;for=9.9.9.1, b";for=203.0.113.7`:         "203.0.113.7",
		`host="a, for=9.9.9.1";for=203.0.113.7`:               "203.0.113.7",
		`for="2\03.0.113.\7"`:                                 "203.0.113.7",
		`for="9.9.9.1, for=203.0.113.7`:                       "203.0.113.7",
		`for="9.9.9.1, for="203.0.113.7"`:                     "203.0.113.7",
		`for=9.9.9.1", for=203.0.113.7`:                       "203.0.113.7",
		`for=9.9.9.1\, for="203.0.113.7"`:                     "203.0.113.7",
		`for=9.9.9.1, for="203.0.113.7\"`:                     "10.0.0.1",
		`for=9.9.9.1, for="203.0.113.7`:                       "10.0.0.1",
		`for=9.9.9.1;for=203.0.113.7`:                         "10.0.0.1",
		`for="203.0.113.7"x`:                                  "10.0.0.1",
		`for=203.0.113.7;host=a"b"`:                           "10.0.0.1",
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = "10.0.0.1:1"
		r.Header.Set("Forwarded", value)
		r.Header.Set("X-Forwarded-For", "192.0.2.66")
		if got := httplimit.ForwardedIP(proxies...)(r); got != want {
			t.Errorf("%s: %q, want %q", value, got, want)
		}
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("Forwarded", "for=203.0.113.9")
	if got := httplimit.ForwardedIP(proxies...)(r); got != "192.0.2.1" {
		t.Errorf("forged without a proxy: %q", got)
	}
	r.RemoteAddr = "@"
	if got := httplimit.ForwardedIP()(r); got != "" {
		t.Errorf("a Unix socket, where nothing is trusted: %q", got)
	}
}

// A header of many hops is read up to the 32nd from the right, whatever lines it is in. If all of those are trusted, the
// last one read is the client.
func TestHopsAreReadUpToABound(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{31: "203.0.113.9", 32: "10.0.1.0", 40: "10.0.1.8"} {
		hops := []string{"203.0.113.9"}
		for i := range n {
			hops = append(hops, fmt.Sprint("10.0.1.", i))
		}
		for _, lines := range [][]string{hops, {strings.Join(hops, ", ")}} {
			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr, r.Header["X-Forwarded-For"] = "10.0.0.1:1", lines
			if got := httplimit.ClientIP(proxies...)(r); got != want {
				t.Errorf("behind %d proxies, in %d lines: %s, want %s", n, len(lines), got, want)
			}
		}
	}
}

// Whatever a client writes into the header, the entry that its proxy appends decides.
func TestForgedHeaderDoesNotChangeClientIP(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		forged := rapid.SliceOf(rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"10.0.0.9", "198.51.100.1", ",", `"`}))).Draw(t, "forged")
		client := netip.AddrFrom4([4]byte{203, 0, 113, rapid.Byte().Draw(t, "client")})
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = "10.0.0.1:1"
		r.Header["X-Forwarded-For"] = []string{strings.Join(append(forged, client.String()), ",")}
		if got := httplimit.ClientIP(proxies...)(r); got != client.String() {
			t.Fatalf("%q, want %v", got, client)
		}
	})
}

// The same holds for Forwarded, and for a Host that the proxy copies into it.
func TestForgedForwardedDoesNotChangeClientIP(t *testing.T) {
	t.Parallel()
	hostile := rapid.Map(rapid.SliceOf(rapid.OneOf(rapid.String(),
		rapid.SampledFrom([]string{"for=198.51.100.1", `for="`, `host="`, ",", ";", `"`, `\`, " ", "=", "for=10.0.0.9"}))),
		func(parts []string) string { return strings.Join(parts, "") })
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	rapid.Check(t, func(t *rapid.T) {
		client := netip.AddrFrom4([4]byte{203, 0, 113, rapid.Byte().Draw(t, "client")})
		node, host := "for="+client.String(), `host="`+quote.Replace(hostile.Draw(t, "host"))+`"`
		entry := rapid.SampledFrom([]string{node, node + ";" + host, host + ";" + node, host + "; " + node + ";proto=https"}).Draw(t, "entry")
		forged := hostile.Draw(t, "forged")
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = "10.0.0.1:1"
		for _, lines := range [][]string{{forged, entry}, {forged + ", " + entry}, {forged + "," + entry + ", for=10.0.0.2"}} {
			r.Header["Forwarded"] = lines
			if got := httplimit.ForwardedIP(proxies...)(r); got != client.String() {
				t.Fatalf("%q: %q, want %v", lines, got, client)
			}
		}
	})
}

func TestSubnet64(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"2001:db8:1:2:3:4:5:6": "2001:db8:1:2::/64", "203.0.113.9": "203.0.113.9", "": "", "7": "7",
		"::ffff:203.0.113.9": "203.0.113.9", "::ffff:cb00:7109": "203.0.113.9",
	} {
		if got := httplimit.Subnet64(httplimit.Text(value))(nil); got != want {
			t.Errorf("%q: %q, want %q", value, got, want)
		}
	}
}

func TestCredential(t *testing.T) {
	t.Parallel()
	const jwt = "eyJhbGciOiJIUzI1NiJ9.e30.c2ln"
	for name, tt := range map[string]struct{ key, authorization, want string }{
		"neither":         {"", "", ""},
		"key":             {"k_123", "", "key"},
		"session":         {"", "Bearer " + jwt, "session"},
		"in small":        {"", "bearer  " + jwt, "session"},
		"key and session": {"k_123", "Bearer " + jwt, "key"},
		"key as bearer":   {"", "Bearer k_123", "key"},
		"dots alone":      {"", "Bearer a.b.c", "key"},
		"no algorithm":    {"", "Bearer e30.e30.c2ln", "key"},
		"another scheme":  {"", "Basic " + jwt, "key"},
		"no scheme":       {"", jwt, "key"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		for header, value := range map[string]string{"X-API-Key": tt.key, "Authorization": tt.authorization} {
			if value != "" {
				r.Header.Set(header, value)
			}
		}
		if got := httplimit.Credential("X-API-Key")(r); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

func ExampleClientIP() {
	ip := httplimit.ClientIP(netip.MustParsePrefix("10.0.0.0/8"))
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "10.0.0.1:54321"
	r.Header.Set("X-Forwarded-For", "198.51.100.1, 203.0.113.9") // the left one was written by the client
	fmt.Println(ip(r))
	// Output: 203.0.113.9
}
