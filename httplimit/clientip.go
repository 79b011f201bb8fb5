package httplimit

import (
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// maxHops bounds how many proxies of a request are looked at.
const maxHops = 32

// ClientIP reads the client's address in canonical form: an IPv4-mapped address such as ::ffff:192.0.2.1 as IPv4, and an
// IPv6 address without a zone.
//
// By default that is the address of the connection. If it is in one of the trusted networks, ClientIP reads
// X-Forwarded-For from the right, past every trusted address, to the first one that is not trusted. Entries to the left of
// that may be forged and are not read. At an entry that is not an address, the result is the proxy that reported it. A Unix
// socket is trusted if any network is given. An IPv4 network may also be given in the form ::ffff:10.0.0.0/104.
//
// Trust only proxies that append to X-Forwarded-For or set it. For proxies that write Forwarded, use [ForwardedIP].
// Reading both headers would let a client forge the one that its proxy passes on unchanged.
func ClientIP(trusted ...netip.Prefix) Attribute {
	return clientIP(trusted, func(h http.Header) []string { return lastEntries(h, "X-Forwarded-For", cutLast) })
}

// ForwardedIP is [ClientIP] with the header Forwarded (RFC 7239). An entry that violates the grammar, or has more than one
// "for", counts as no address.
func ForwardedIP(trusted ...netip.Prefix) Attribute {
	return clientIP(trusted, func(h http.Header) []string {
		hops := lastEntries(h, "Forwarded", cutLastUnquoted)
		for i, hop := range hops {
			hops[i] = forwardedFor(hop)
		}
		return hops
	})
}

func clientIP(networks []netip.Prefix, forwarded func(http.Header) []string) Attribute {
	trusted := make([]netip.Prefix, len(networks))
	for i, network := range networks {
		trusted[i] = unmapped(network)
	}
	return func(r *http.Request) string {
		client, ok := parseHop(r.RemoteAddr)
		unixSocket := len(trusted) > 0 && (r.RemoteAddr == "" || r.RemoteAddr[0] == '@' || r.RemoteAddr[0] == '/')
		if !unixSocket && !isTrusted(client, trusted) {
			return addressText(client, ok)
		}
		hops := forwarded(r.Header)
		for i := len(hops) - 1; i >= 0; i-- {
			hop, isAddress := parseHop(hops[i])
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

// unmapped converts ::ffff:10.0.0.0/104 to 10.0.0.0/8, because it is compared with addresses that are unmapped, too. A
// network wider than ::ffff:0:0/96 stays an IPv6 network.
func unmapped(network netip.Prefix) netip.Prefix {
	if ip := network.Addr(); ip.Is4In6() && network.Bits() >= 96 {
		return netip.PrefixFrom(ip.Unmap(), network.Bits()-96)
	}
	return network
}

func isTrusted(ip netip.Addr, trusted []netip.Prefix) bool {
	return slices.ContainsFunc(trusted, func(network netip.Prefix) bool { return network.Contains(ip) })
}

// lastEntries returns the last entries, at most maxHops, of a header that is a comma-separated list on one or more lines.
func lastEntries(h http.Header, name string, cut func(line string, separator byte) (before, last string, found bool)) []string {
	var entries []string
	lines := h.Values(name)
	for i := len(lines) - 1; i >= 0 && len(entries) < maxHops; i-- {
		for line, more := lines[i], true; more && len(entries) < maxHops; {
			var entry string
			line, entry, more = cut(line, ',')
			entries = append(entries, strings.TrimSpace(entry))
		}
	}
	slices.Reverse(entries)
	return entries
}

func cutLast(text string, separator byte) (before, last string, found bool) {
	if i := strings.LastIndexByte(text, separator); i >= 0 {
		return text[:i], text[i+1:], true
	}
	return "", text, false
}

// cutLastUnquoted is cutLast for a text with quoted strings, which it does not split. It reads from the right, where
// trusted proxies have written, so it finds their entries before it comes to a quote that a client left open.
func cutLastUnquoted(text string, separator byte) (before, last string, found bool) {
	quoted := false
	for i := len(text) - 1; i >= 0; i-- {
		switch c := text[i]; {
		case c == '"' && !(quoted && escaped(text[:i])):
			quoted = !quoted
		case c == separator && !quoted:
			return text[:i], text[i+1:], true
		}
	}
	return "", text, false
}

// escaped reports whether the character after before is escaped: an odd number of backslashes precedes it.
func escaped(before string) bool {
	return (len(before)-len(strings.TrimRight(before, `\`)))%2 == 1
}

// forwardedFor returns the value of the parameter "for", as in for="[2001:db8::1]:4711";proto=https, if it occurs exactly
// once.
func forwardedFor(element string) (node string) {
	for more, found := true, false; more; {
		var parameter string
		element, parameter, more = cutLastUnquoted(element, ';')
		name, value, _ := strings.Cut(parameter, "=")
		value, ok := unquoted(strings.TrimSpace(value))
		switch isFor := strings.EqualFold(strings.TrimSpace(name), "for"); {
		case !ok || isFor && found:
			return ""
		case isFor:
			node, found = value, true
		}
	}
	return node
}

// unquoted reads a token or a quoted string. Tokens are not validated, since many proxies write for=192.0.2.1:4711.
func unquoted(value string) (text string, ok bool) {
	if !strings.Contains(value, `"`) {
		return value, true
	}
	if value[0] != '"' {
		return "", false
	}
	var b strings.Builder
	for i := 1; i < len(value); i++ {
		switch value[i] {
		case '"':
			return b.String(), i == len(value)-1
		case '\\':
			if i++; i == len(value) {
				return "", false
			}
		}
		b.WriteByte(value[i])
	}
	return "", false
}

// hiddenPort matches a port that a proxy obfuscates with a name (RFC 7239, 6.3).
var hiddenPort = regexp.MustCompile(`:_[A-Za-z0-9._-]+$`)

// parseHop parses an address with or without a port and brackets.
func parseHop(text string) (netip.Addr, bool) {
	text = hiddenPort.ReplaceAllString(text, "")
	if hop, err := netip.ParseAddrPort(text); err == nil {
		return hop.Addr().Unmap().WithZone(""), true
	}
	hop, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	return hop.Unmap().WithZone(""), err == nil
}
