package httplimit

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/seed503877ad/limits"
)

// An Attribute reads something off a request. An empty text means that the request has no such thing. Those of this package write
// what is not printable percent-encoded, since the limiter takes none: the narrow space of "9.41\u202fAM" as %E2%80%AF. A % that came
// stays as it is.
type Attribute func(*http.Request) string

// Text is the same for every request.
func Text(text string) Attribute { return func(*http.Request) string { return text } }

// Header reads the first header of that name. Never limit by a header that holds a secret: keys are stored and
// shown as they are. Nor by one that the client may choose freely, unless something in front has checked it.
func Header(name string) Attribute {
	return func(r *http.Request) string { return printable(r.Header.Get(name)) }
}

// Path reads the path, decoded, so that /%61 gets around no policy for /a; and not cleaned. http.FileServer cleans what it serves:
// there /files/x%2F..%2Fa is another path to the file /files/a, so limit by [Route], or by a policy for /files/*. A path over
// 256 bytes is refused; where such are served, limit by [Route] instead. An empty path, as of the request line
// GET http://example.com HTTP/1.1, is / (RFC 9110, 4.2.3), or such a request would have no attribute.
func Path() Attribute {
	return func(r *http.Request) string { return printable(cmp.Or(r.URL.Path, "/")) }
}

// printable writes the bytes of what is not printable as a URL has them. What is too long for an attribute is refused as it is.
func printable(text string) string {
	odd := func(r rune) bool { return !unicode.IsPrint(r) }
	if len(text) > limits.MaxAttributeBytes || utf8.ValidString(text) && !strings.ContainsFunc(text, odd) {
		return text
	}
	var b strings.Builder
	for i, n := 0, 0; i < len(text); i += n {
		var r rune
		if r, n = utf8.DecodeRuneInString(text[i:]); odd(r) || r == utf8.RuneError && n == 1 {
			b.WriteString(url.PathEscape(text[i : i+n]))
		} else {
			b.WriteString(text[i : i+n])
		}
	}
	return b.String()
}

// Method reads the method. A match on GET lets HEAD past, which http.ServeMux serves by the patterns of GET: the work is done all the same.
// Match [Route], whose pattern is one for both, or name HEAD beside GET.
func Method() Attribute { return func(r *http.Request) string { return r.Method } }

// Query reads the first query parameter of that name.
func Query(name string) Attribute {
	return func(r *http.Request) string { return printable(r.URL.Query().Get(name)) }
}

// Route reads the pattern that the request matched, such as "GET /users/{id}", also for HEAD. It is known only behind the
// http.ServeMux, where the middleware wraps single handlers; in front of it, use [RouteIn].
func Route() Attribute { return func(r *http.Request) string { return r.Pattern } }

// RouteIn reads the pattern that mux would match, for a middleware that stands in front of mux. A request that no pattern matches, which
// mux answers with 404 or 405, has no route, and an attribute without a value is left out: so no policy applies that matches by it, were
// it with "*", and who probes for paths has no limit. Or(RouteIn(mux), Text("none")) gives those one.
func RouteIn(mux *http.ServeMux) Attribute {
	return func(r *http.Request) string {
		_, pattern := mux.Handler(r)
		return pattern
	}
}

// PathValue reads a wildcard of the matched pattern, as [Route] behind the http.ServeMux.
func PathValue(name string) Attribute {
	return func(r *http.Request) string { return printable(r.PathValue(name)) }
}

// Or gives the first value that is not empty, such as Or(Header("X-Plan"), Text("free")). Where the values are of two kinds, one kind
// must not pass for the other: a user who goes by the name of an address would use up its limit. So put user: and ip: in front, in a
// function of your own, and the address into [Subnet64]; the example of [Middleware] does both.
func Or(attributes ...Attribute) Attribute {
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

// Credential tells the traffic of API keys from that of browser sessions, so that a policy can exempt the latter:
// "key" for a request with the header keyHeader (such as "X-API-Key") or with an Authorization that is not a JSON
// Web Token, "session" for one whose bearer token is a JSON Web Token (RFC 7519), nothing for one with neither. A
// request with both is "key": adding a token exempts nobody.
//
// The token is not verified. Exempt by it only behind the authentication, or in front of handlers that refuse a
// token that is forged.
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

// isJWT looks at the form alone: three parts, the first of which is a JSON object that names an algorithm.
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

// Subnet64 gives the /64 network of an IPv6 address, an IPv4 address that came as ::ffff:192.0.2.1 as 192.0.2.1, and
// other values as they are. One client commonly has a whole /64, so a limit on single IPv6 addresses limits nobody.
// Policies can do the same with a filter.
func Subnet64(address Attribute) Attribute {
	return func(r *http.Request) string {
		value := address(r)
		ip, err := netip.ParseAddr(value)
		switch {
		case err != nil || ip.Is4():
			return value
		case ip.Is4In6():
			return ip.Unmap().String()
		}
		network, _ := ip.Prefix(64) // an IPv6 address has one
		return network.String()
	}
}
