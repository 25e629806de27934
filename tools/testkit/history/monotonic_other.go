//go:build !(linux || darwin || freebsd || netbsd || openbsd)

package history

// monotonic returns zero: this system has no such clock that processes share.
func monotonic() int64 { return 0 }
