package httplimit

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/seed503877ad/limits"
)

// An Attribute reads a value from a request. An empty text means that the request has no such value.
//
// The limiter accepts only printable characters, so the attributes of this package percent-encode all others: the narrow
// space in "9.41\u202fAM" becomes %E2%80%AF. A % in the value stays as it is. A request with a value that is then over 256
// bytes is refused.
type Attribute func(*http.Request) string

// Text returns the same text for every request.
func Text(text string) Attribute { return func(*http.Request) string { return text } }

// Header reads the first header with the name. Never limit by a header that holds a secret, because keys are stored and
// shown as they are, or by a header that the client may choose freely, unless something in front has checked it.
//
// Host is as the client wrote it, in any letter case and with or without a port. Transfer-Encoding and Trailer, which
// net/http keeps to itself, have no value.
func Header(name string) Attribute {
	if strings.EqualFold(name, "Host") { // which net/http removes from the headers
		return func(r *http.Request) string { return printable(r.Host) }
	}
	return func(r *http.Request) string { return printable(r.Header.Get(name)) }
}

// Path reads the decoded path, so that /%61 is no way around a policy for /a.
//
// The path is not cleaned, but http.FileServer cleans what it serves: /files/x%2F..%2Fa is another path to the file
// /files/a. In front of a file server limit by [Route], or by a policy for /files/*. A request with a path over 256 bytes
// is refused; if such paths are served, limit by [Route]. An empty path, as in the request line
// GET http://example.com HTTP/1.1, is read as / (RFC 9110, 4.2.3), since an attribute without a value is left out.
func Path() Attribute {
	return func(r *http.Request) string { return printable(cmp.Or(r.URL.Path, "/")) }
}

// printable percent-encodes unprintable characters and invalid UTF-8. A text that is too long for an attribute, by itself
// or when it is encoded, is refused later. It is not cut, since two texts may begin alike.
func printable(text string) string {
	unprintable := func(r rune) bool { return !unicode.IsPrint(r) }
	if len(text) > limits.MaxAttributeBytes || utf8.ValidString(text) && !strings.ContainsFunc(text, unprintable) {
		return text
	}
	var b strings.Builder
	for i, n := 0, 0; i < len(text); i += n {
		var r rune
		if r, n = utf8.DecodeRuneInString(text[i:]); unprintable(r) || r == utf8.RuneError && n == 1 {
			b.WriteString(url.PathEscape(text[i : i+n]))
		} else {
			b.WriteString(text[i : i+n])
		}
	}
	return b.String()
}

// Method reads the method. A policy that matches GET does not match HEAD, which http.ServeMux serves by the patterns of
// GET, with the same work. Match [Route], whose pattern is the same for both, or list HEAD beside GET.
func Method() Attribute { return func(r *http.Request) string { return r.Method } }

// Query reads the first query parameter with the name.
func Query(name string) Attribute {
	return func(r *http.Request) string { return printable(r.URL.Query().Get(name)) }
}

// Route reads the pattern that the request matched, such as "GET /users/{id}", which is the same for HEAD. It is known
// only inside the http.ServeMux, if the middleware wraps single handlers. In front of the mux use [RouteIn].
func Route() Attribute { return func(r *http.Request) string { return r.Pattern } }

// RouteIn reads the pattern that mux would match, for a middleware in front of mux. It panics if mux is nil.
//
// A request that no pattern matches, which mux answers with 404 or 405, has no route. An attribute without a value is left
// out, so no policy that matches by route applies, not even with "*", and clients that probe for paths are not limited.
// Or(RouteIn(mux), Text("none")) gives such requests a route.
func RouteIn(mux *http.ServeMux) Attribute {
	if mux == nil {
		panic("httplimit: RouteIn: mux is nil")
	}
	return func(r *http.Request) string {
		_, pattern := mux.Handler(r)
		return pattern
	}
}

// PathValue reads a wildcard of the matched pattern. Like [Route], it works only inside the http.ServeMux.
func PathValue(name string) Attribute {
	return func(r *http.Request) string { return printable(r.PathValue(name)) }
}

// Or returns the first value that is not empty, as in Or(Header("X-Plan"), Text("free")). It panics if an attribute is nil.
//
// If the values are of different kinds, such as users and addresses, make sure that one kind cannot pass for the other. A
// user whose name is an address would use up the limit of that address. Prefix the values with user: and ip: in a function
// of your own, and apply [Subnet64] to the address. The example of [Middleware] does both.
func Or(attributes ...Attribute) Attribute {
	for i, attribute := range attributes {
		if attribute == nil {
			panic(fmt.Sprintf("httplimit: Or: attribute %d is nil", i+1))
		}
	}
	return func(r *http.Request) string {
		for _, attribute := range attributes {
			if value := attribute(r); value != "" {
				return value
			}
		}
		return ""
	}
}

// The values of [Credential].
const (
	KeyCredential     = "key"
	SessionCredential = "session"
)

// Credential tells requests with API keys from those of browser sessions, so that a policy can exempt the latter. It is
//
//   - "key" for a request with the header keyHeader (such as "X-API-Key"), or with an Authorization header that is not a
//     JSON Web Token,
//   - "session" for a request whose bearer token is a JSON Web Token (RFC 7519),
//   - empty for a request with neither.
//
// A request with both is "key", so adding a token does not exempt it. The token is not verified. Exempt by Credential
// only after authentication, or in front of handlers that refuse a forged token.
func Credential(keyHeader string) Attribute {
	return func(r *http.Request) string {
		authorization := r.Header.Get("Authorization")
		scheme, token, _ := strings.Cut(authorization, " ")
		switch {
		case r.Header.Get(keyHeader) != "":
			return KeyCredential
		case strings.EqualFold(scheme, "Bearer") && isJWT(strings.TrimSpace(token)):
			return SessionCredential
		case authorization != "":
			return KeyCredential
		}
		return ""
	}
}

// isJWT checks only the form: three parts, the first of which is a JSON object that names an algorithm.
func isJWT(token string) bool {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return false
	}
	header, err := base64.RawURLEncoding.DecodeString(parts[0])
	if err != nil {
		return false
	}
	var fields struct{ Alg string }
	return json.Unmarshal(header, &fields) == nil && fields.Alg != ""
}

// Subnet64 replaces an IPv6 address by its /64 network, and an IPv4-mapped address such as ::ffff:192.0.2.1 by 192.0.2.1.
// It returns other values as they are. One client commonly has a whole /64, so a limit on single IPv6 addresses would limit
// nobody. Policies can do the same with a filter. It panics if address is nil.
func Subnet64(address Attribute) Attribute {
	if address == nil {
		panic("httplimit: Subnet64: address is nil")
	}
	return func(r *http.Request) string {
		value := address(r)
		ip, err := netip.ParseAddr(value)
		switch {
		case err != nil || ip.Is4():
			return value
		case ip.Is4In6():
			return ip.Unmap().String()
		}
		network, _ := ip.Prefix(64) // never fails for an IPv6 address
		return network.String()
	}
}
