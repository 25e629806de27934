package key

import (
	_ "os"
	_ "testing"
	_ "pgregory.net/rapid"
)
