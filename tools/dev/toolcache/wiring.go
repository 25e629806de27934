package toolcache

import (
	"os"
	"time"
)

// Console reports to a file as it is read there: every second over one line of a terminal, else a line every five
// seconds. Meant for the standard error of a command: it lives as long as the process.
func Console(file *os.File) *Progress {
	interval, terminal := 5*time.Second, false
	if info, err := file.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
		interval, terminal = time.Second, true
	}
	return &Progress{Out: file, Terminal: terminal, Now: time.Now, Ticks: time.NewTicker(interval).C}
}
