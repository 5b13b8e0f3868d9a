class Encoding:
    PEM: Encoding
    OpenSSH: Encoding

class PrivateFormat:
    PKCS8: PrivateFormat
    OpenSSH: PrivateFormat

class PublicFormat:
    OpenSSH: PublicFormat

class NoEncryption: ...

def load_pem_private_key(data: bytes, password: bytes | None) -> object: ...
def load_ssh_private_key(data: bytes, password: bytes | None) -> object: ...
