// Package httplimit puts the limiter in front of HTTP handlers, and teaches HTTP clients to keep to the limits of
// others.
//
// [Middleware] asks the limiter before each request, as net/http middleware, and so for every router that takes
// func(http.Handler) http.Handler. [Config] says what is limited, what a failure of the limiter means, and in
// which style headers and bodies are written.
//
// With [Config.APIKey] the same question verifies the API key of a request, and [KeyFrom] tells handlers whose it is.
//
// [Transport] repeats requests that were answered 429, never before the server's time. [Outbound] waits for its
// turn before each request, so that many processes together keep to somebody else's limit.
//
// Everything that a request carries is taken as hostile: what it says is bounded before it is sent, and a request
// that the limiter cannot read is refused with 400, whatever FailClosed says. Otherwise a header of 300 bytes
// would be a way around every limit.
//
// The package knows the client of the service and the standard library, and nothing else.
package httplimit
