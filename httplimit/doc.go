// Package httplimit puts the limiter in front of HTTP handlers, and makes HTTP clients keep to the limits of other
// services.
//
// # Servers
//
// [Middleware] asks the limiter before each request. It makes a func(http.Handler) http.Handler, so it works with every
// router for net/http. [Config] says what is limited, what happens if the limiter fails, and in which style
// headers and bodies are written. With [Config.APIKey] the same request to the limiter also verifies the API key of the
// HTTP request, and handlers get the key from [KeyFrom].
//
// Everything in an HTTP request is treated as hostile. Its values are bounded before they are sent, and a request that
// the limiter cannot read is refused with 400, even without FailClosed. Otherwise a header of 300 bytes would be a way
// around every limit.
//
// # Clients
//
// [Transport] retries requests that were answered 429, and never before the time that the server asked for. [Outbound]
// waits before each request until a limit has room for it, so that many processes together keep to the limit of another
// service.
//
// The package depends on the client of the service (package limits) and the standard library, and on nothing else.
package httplimit
