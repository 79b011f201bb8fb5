package httplimit

import (
	"net/http"
	"net/netip"
	"strings"
)

// maxHops bounds how far back the way of a request is followed.
const maxHops = 32

// ClientIP reads the client's address in canonical form: IPv4 also where it came as ::ffff:192.0.2.1, no zone.
//
// It is the address of the connection, unless that is in one of the trusted networks: then X-Forwarded-For is read
// from the right, past every address that is trusted, to the first that is not. What stands left of it may be
// forged and is not read. An entry that is no address ends the walk at the proxy that reported it. A Unix socket
// is trusted if anything is.
//
// Trust only proxies that append to X-Forwarded-For or set it. For those that write Forwarded instead, see
// [ForwardedIP]; reading both would let a client forge the one that its proxy passes on untouched.
func ClientIP(trusted ...netip.Prefix) Attribute {
	return clientIP(trusted, func(h http.Header) []string { return list(h, "X-Forwarded-For") })
}

// ForwardedIP is [ClientIP] with the header Forwarded of RFC 7239.
func ForwardedIP(trusted ...netip.Prefix) Attribute {
	return clientIP(trusted, func(h http.Header) []string {
		hops := list(h, "Forwarded")
		for i, hop := range hops {
			hops[i] = forwardedFor(hop)
		}
		return hops
	})
}

func clientIP(trusted []netip.Prefix, hops func(http.Header) []string) Attribute {
	return func(r *http.Request) string {
		client, ok := parseHop(r.RemoteAddr)
		socket := len(trusted) > 0 && (r.RemoteAddr == "" || r.RemoteAddr[0] == '@' || r.RemoteAddr[0] == '/')
		if !socket && !isTrusted(client, trusted) {
			return addressText(client, ok)
		}
		way := hops(r.Header)
		for i := len(way) - 1; i >= 0; i-- {
			hop, isAddress := parseHop(way[i])
			if !isAddress {
				break
			}
			client, ok = hop, true
			if !isTrusted(hop, trusted) {
				break
			}
		}
		return addressText(client, ok)
	}
}

func addressText(ip netip.Addr, ok bool) string {
	if !ok {
		return ""
	}
	return ip.String()
}

func isTrusted(ip netip.Addr, trusted []netip.Prefix) bool {
	for _, network := range trusted {
		if network.Contains(ip) {
			return true
		}
	}
	return false
}

// list gives the last entries of a header that is a list and may come in several lines.
func list(h http.Header, name string) []string {
	var entries []string
	lines := h.Values(name)
	for i := len(lines) - 1; i >= 0 && len(entries) < maxHops; i-- {
		for line, more := lines[i], true; more && len(entries) < maxHops; {
			var entry string
			line, entry, more = cutLast(line)
			entries = append(entries, strings.TrimSpace(entry))
		}
	}
	for i, j := 0, len(entries)-1; i < j; i, j = i+1, j-1 {
		entries[i], entries[j] = entries[j], entries[i]
	}
	return entries
}

// cutLast cuts at the last comma. Those inside of quotes need no care: no address has one.
func cutLast(line string) (before, last string, found bool) {
	if i := strings.LastIndexByte(line, ','); i >= 0 {
		return line[:i], line[i+1:], true
	}
	return "", line, false
}

// forwardedFor gives the node of the parameter "for", as in for="[2001:db8::1]:4711";proto=https.
func forwardedFor(element string) string {
	for parameter := range strings.SplitSeq(element, ";") {
		name, value, _ := strings.Cut(parameter, "=")
		if strings.EqualFold(strings.TrimSpace(name), "for") {
			return strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	return ""
}

// parseHop reads an address with or without a port and brackets.
func parseHop(text string) (netip.Addr, bool) {
	if hop, err := netip.ParseAddrPort(text); err == nil {
		return hop.Addr().Unmap().WithZone(""), true
	}
	hop, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	return hop.Unmap().WithZone(""), err == nil
}
