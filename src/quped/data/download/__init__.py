"""From files on the net, in a package or in a folder to one verified file in the cache."""
